"""The routes of the server, one module for each subject; `serving.app` adds them to the application."""
