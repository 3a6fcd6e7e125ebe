"""Access: authentication, RBAC, and the reviews for questions about both."""
