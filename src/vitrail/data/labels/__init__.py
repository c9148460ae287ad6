"""From columns of a table, whoever wrote it, to what is to be learnt."""
