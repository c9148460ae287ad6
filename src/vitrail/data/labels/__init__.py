"""Labels: from columns of a table to column roles, the task and its targets."""
