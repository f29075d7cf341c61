"""Enginebay beside other engines: the same weights and token ids, in turn in one run.

    python -m benchmarks.peers --stacks cpu --python openvino=/venvs/openvino/bin/python

Each engine runs through its own in-process API, in a process of its own, with the same
number of threads. Between its turns a process is stopped (``SIGSTOP``), so threads that
spin while they wait disturb nobody. Prompts are random token ids, new in each round;
decoding is greedy, end-of-sequence tokens don't count, prefix caches are off.
"""
