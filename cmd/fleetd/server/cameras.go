package server

import (
	"context"
	"slices"
	"time"

	"fleetd/fleet"
	"fleetd/internal/bounded"
)

// maxCameraBuilds bounds the builds in memory, because a device can report another build at each
// boot.
const maxCameraBuilds = 4096

// cameras caches which builds have tools that use a camera. Devices of the same build have the
// same tools, so a fleet that reconnects costs one read for each build, and devices without a
// camera get no request.
type cameras struct {
	builds *bounded.Cache[string, bool] // by the SHA-256 of the ELF
}

func (c *cameras) note(elf string, tools []fleet.Tool) bool {
	has := slices.ContainsFunc(tools, func(t fleet.Tool) bool { return fleet.UsesCamera(t.Name) })
	if elf == "" {
		return has
	}
	c.builds.Add(elf, has)
	return has
}

func (c *cameras) known(elf string) (has, known bool) {
	return c.builds.Get(elf)
}

// visionURL returns the address to which a device's camera sends pictures, "" for a device that
// has no camera. If a device's tools are not known yet, it gets the address too, with the
// request for its tools.
func (s *Server) visionURL(device string) (url, token string) {
	id := fleet.DeviceID(device)
	if running := s.Enrolments.Running(id); running.InventoryFresh && !s.hasCamera(id, running.ELFSHA256) {
		return "", ""
	}
	return s.vision.Address(id)
}

func (s *Server) hasCamera(id fleet.DeviceID, elf string) bool {
	if has, known := s.cameras.known(elf); known {
		return has
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	inventory, err := s.Devices.Tools(ctx, id)
	if err != nil {
		return true // an unused address does no harm
	}
	return s.cameras.note(elf, inventory.Tools)
}
