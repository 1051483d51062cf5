"""A plug-in of Treadle: one dialect, pass, template, rule, converter and target, which its entry points name."""
