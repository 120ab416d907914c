"""The rules, by theme; `table` puts them in order."""
