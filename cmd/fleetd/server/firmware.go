package server

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"os"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/espimage"
	"fleetd/fleet/firmware"
	"fleetd/fleet/rollout"

	"github.com/google/uuid"
)

// openFirmware starts what brings firmware to devices: images and releases,
// their downloads, and campaigns with the engine that carries them out.
func (s *Server) openFirmware(context.Context) error {
	keys, err := imageKeys(s.cfg.ImageKeys)
	if err != nil {
		return err
	}
	manifestKeys, err := manifestKeys(s.cfg.ManifestKeys)
	if err != nil {
		return err
	}
	if s.zone, err = time.LoadLocation(s.cfg.TimeZone); err != nil {
		return fmt.Errorf("--time-zone %q is not known: write a name such as Europe/Berlin or Asia/Shanghai", s.cfg.TimeZone)
	}
	s.downloads = firmware.NewDownloads(firmware.DownloadsOptions{Links: s.store, Blobs: s.blobs,
		MaxConcurrent:  s.cfg.MaxDownloads,
		BytesPerSecond: s.cfg.DownloadRate, Log: s.log,
		Observe: func(t firmware.Transfer) { s.engine.Load().Transferred(t) }})
	engine := rollout.New(rollout.Options{Store: s.store, Inventories: s.store, Quarantines: s.store, Calls: s.calls,
		Link:     s.broker,
		Presence: s.presences, Downloads: s.downloads, Rollback: s.rollBack, PublicURL: s.cfg.PublicURL, Events: s.events,
		Log:  s.log,
		Zone: s.zone, Timers: s.cfg.timers, Tick: s.cfg.engineTick})
	s.firmware = firmware.New(firmware.Options{Store: s.store, Blobs: s.blobs, Devices: s.store, Layouts: s.store,
		Taken:  campaign.Taken(s.store),
		Events: s.events, Revoked: s.downloads.RevokeImages, Keys: keys, ManifestKeys: manifestKeys,
		RequireSigned: s.cfg.RequireSigned, Log: s.log})
	s.campaigns = campaign.New(campaign.Options{Store: s.store, Firmware: s.store, Devices: s.store, Inventories: s.store,
		Quarantines: s.store, Requeue: s.store.Requeue, RequireApproval: s.cfg.RequireApproval, Events: s.events,
		Wake: engine.Wake, Zone: s.zone, Log: s.log})
	s.engine.Store(engine)
	s.stages.run("campaigns", engine.Run)
	return nil
}

// rollBack is what an abort rule or an operator asked for when a campaign
// stopped.
func (s *Server) rollBack(ctx context.Context, campaign uuid.UUID) error {
	by := fleet.Actor{Kind: fleet.ActorSystem, Name: "fleetd", Role: fleet.RoleOperator}
	_, err := s.campaigns.Rollback(ctx, by, campaign)
	return err
}

// manifestKeys reads the public keys that manifests must be signed with.
func manifestKeys(files []string) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--manifest-key: %w", err)
		}
		some, err := espimage.ParseReleaseKeys(text)
		if err != nil {
			return nil, fmt.Errorf("--manifest-key %s: %w", name, err)
		}
		keys = append(keys, some...)
	}
	return keys, nil
}

// imageKeys reads the public keys that signatures of images are trusted of.
func imageKeys(files []string) ([]espimage.Key, error) {
	var keys []espimage.Key
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("--image-key: %w", err)
		}
		some, err := espimage.ParseKeys(text)
		if err != nil {
			return nil, fmt.Errorf("--image-key %s: %w", name, err)
		}
		keys = append(keys, some...)
	}
	return keys, nil
}
