"""Plugins that break their contract on purpose, each in one way.

A suite that passes them would prove nothing. Every mutant names the check that must
catch it; the tests hold the suite to that.
"""
