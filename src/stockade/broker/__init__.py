"""Holds the tools' secrets, and puts them into requests on their way out: nobody else sees one."""
