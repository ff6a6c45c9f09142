"""Raw records: as their files hold them, and the way from there to what a method reads."""
