package main

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"

	"fleetd/broker/sim"
	"fleetd/fleet"
)

// demoVersions are the releases of a demo fleet: one that some of its devices
// run, to roll back to, and one that is new to all.
var demoVersions = []string{"2.4.2", "2.5.0"}

const demoImageSize = 1_200_000

// runDemo adds simulated devices, which reach fleetd as real ones do, and
// firmware to try a campaign with.
func (s *server) runDemo(ctx context.Context, devices int) error {
	if err := s.demoFirmware(ctx); err != nil {
		return fmt.Errorf("firmware of the demo fleet: %w", err)
	}
	s.stages.run("demo fleet", func(ctx context.Context) error {
		f, err := sim.New(sim.Options{OTAURL: s.localURL() + "/xiaozhi/ota/", Devices: devices, Seed: 1, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return err
		}
		return f.Run(ctx)
	})
	return nil
}

// demoFirmware makes the demo's releases, unless there is firmware already.
func (s *server) demoFirmware(ctx context.Context) error {
	page, err := s.firmware.Images(ctx, fleet.ImageFilter{Limit: 1})
	if err != nil || len(page.Items) > 0 {
		return err
	}
	by := fleet.Actor{Kind: fleet.ActorSystem, Name: "demo", Role: fleet.RoleOperator}
	for _, version := range demoVersions {
		r := fleet.ReleaseRequest{Notes: "For the simulated devices of the demo."}
		for _, board := range sim.DefaultBoards {
			data, err := sim.AppImage(board, version, demoImageSize)
			if err != nil {
				return err
			}
			img, _, err := s.firmware.Upload(ctx, by, fleet.ImageUpload{Body: bytes.NewReader(data), Board: board,
				FileName: board + "-" + version + ".bin"})
			if err != nil {
				return err
			}
			r.Images = append(r.Images, img.SHA256)
		}
		if _, err := s.firmware.Create(ctx, by, r); err != nil {
			return err
		}
	}
	return nil
}
