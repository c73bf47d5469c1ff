package device

import "time"

// SetPatience shortens what downloads wait for.
func (h *Handler) SetPatience(place, stall time.Duration) {
	h.placePatience, h.stallPatience = place, stall
}
