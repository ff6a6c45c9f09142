"""Devices: where training computes, in which precision, and what moves there."""
