"""Running jobs: claim, resume, heartbeat, drain; an embedded dispatcher or Celery start them."""
