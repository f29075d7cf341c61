"""One command that checks and times all there is for GPUs, on a machine that has one."""
