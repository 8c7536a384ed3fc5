"""Device pool: boards by kind behind SSH or local processes, leased to several tuners in fair shares."""
