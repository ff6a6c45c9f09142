"""Where trials come from: suggested, admitted, handed to Ray Tune."""
