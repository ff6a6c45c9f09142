"""Search: where trials come from, suggested, admitted and handed to Ray Tune."""
