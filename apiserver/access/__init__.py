"""Who may do what: authentication, RBAC, and the reviews that answer questions about both."""
