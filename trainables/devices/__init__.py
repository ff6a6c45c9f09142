"""Devices: where training computes, in which precision, and in how much memory."""
