package device

import "time"

// SetTimeouts shortens how long downloads wait.
func (h *Handler) SetTimeouts(place, stall time.Duration) {
	h.placeTimeout, h.stallTimeout = place, stall
}
