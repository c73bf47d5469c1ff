package device

import "time"

// SetTimeouts shortens the timeouts of downloads.
func (h *Handler) SetTimeouts(place, stall time.Duration) {
	h.placeTimeout, h.stallTimeout = place, stall
}
