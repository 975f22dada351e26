"""The replay: the search's own contest, and its peers' own code, on recorded curves in virtual time."""
