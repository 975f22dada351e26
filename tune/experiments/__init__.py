"""The experiments of the published reports, one file each, and what all of them share."""
