"""Measurements that anyone can repeat: each command writes a dated table and plot that name the hardware."""
