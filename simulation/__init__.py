"""Simulation: real schedulers, allocators and admission on imagined hardware and time."""
