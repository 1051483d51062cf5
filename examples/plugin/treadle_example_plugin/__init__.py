"""A plug-in of Treadle: one pass, template, rule, converter and target, which its entry points name."""
