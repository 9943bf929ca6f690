"""Every cell of every table: the tables decide what a broker answers, so each decision is written down twice."""
