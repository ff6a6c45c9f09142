"""Images as others have stored them: archives of known datasets, folders, tables of labels."""
