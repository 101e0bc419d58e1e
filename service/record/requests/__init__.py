"""What is asked for beside experiments: analyses, reproductions, results of elsewhere."""
