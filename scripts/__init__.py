"""Where experiments run: the emulated cluster on this machine, its calibration, and whether a run was faithful."""
