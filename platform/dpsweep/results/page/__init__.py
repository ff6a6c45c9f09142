"""Page of a study: one file of HTML that needs no network."""
