"""Sources of trials: suggested, admitted, handed to Ray Tune."""
