"""Passes from one level of the IR to the next lower one."""
