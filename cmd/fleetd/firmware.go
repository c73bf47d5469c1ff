package main

import (
	"context"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
)

// openFirmware makes the services of images, releases and campaigns.
func (s *server) openFirmware(context.Context) error {
	busy := func(ctx context.Context, devices []fleet.DeviceID) ([]fleet.DeploymentConflict, error) {
		return s.store.Conflicts(ctx, uuid.Nil, devices)
	}
	s.firmware = fleet.NewFirmware(fleet.FirmwareOptions{Store: s.store, Blobs: s.blobs, Devices: s.store, Busy: busy,
		Quarantines: s.store, Events: s.events, Log: s.log})
	s.campaigns = fleet.NewCampaigns(fleet.CampaignsOptions{Store: s.store, Firmware: s.store, Devices: s.store, Inventories: s.store,
		Quarantines: s.store, Requeue: s.store.Requeue, Events: s.events, Zone: time.Local, Log: s.log})
	return nil
}
