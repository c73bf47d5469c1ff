package device

import (
	"sync/atomic"

	"fleetd/fleet/enrolment"
)

// Stats are a [Handler]'s numbers since its start.
type Stats struct {
	PollsSalvaged   int64 // boot polls whose body broke and was read up to there
	PollsUnreadable int64 // boot polls of which nothing but the headers could be read
}

type stats struct{ salvaged, unreadable atomic.Int64 }

func (s *stats) count(p *enrolment.BootPoll) {
	switch {
	case len(p.Salvaged) > 0:
		s.salvaged.Add(1)
	case p.Broken:
		s.unreadable.Add(1)
	}
}

// Stats returns the handler's numbers.
func (h *Handler) Stats() Stats {
	return Stats{PollsSalvaged: h.stats.salvaged.Load(), PollsUnreadable: h.stats.unreadable.Load()}
}
