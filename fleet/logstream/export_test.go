package logstream

import "time"

// Hurry shortens the pause after a failure, and the time after which a syslog server counts as having received.
func (s *Service) Hurry(retry, settled time.Duration) { s.retry, s.syslogSettled = retry, settled }
