"""PostgreSQL: sessions with a server, and logs that are rows in it."""
