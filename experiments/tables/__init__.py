"""The report's tables, each a function of records; text in Markdown."""
