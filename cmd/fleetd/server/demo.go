package server

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/firmware"
	"fleetd/fleet/operator"
)

// demoVersions are the releases of a demo fleet: one that some of its devices
// run, as the target of rollbacks, and one that is new to all.
var demoVersions = []string{"2.4.2", "2.5.0"}

const demoImageSize = 1_200_000

// startDemo adds simulated and virtual devices, which reach fleetd as real ones
// do, and firmware for trial campaigns.
func (s *Server) startDemo(ctx context.Context) error {
	if s.cfg.Demo > 0 {
		if err := s.demoFirmware(ctx); err != nil {
			return fmt.Errorf("firmware of the demo fleet: %w", err)
		}
		if err := s.demoModel(ctx); err != nil {
			return fmt.Errorf("token of the demo fleet: %w", err)
		}
		s.stages.run("demo fleet", s.simulate)
	}
	if s.cfg.DemoVirtual == "" {
		return nil
	}
	v, err := s.virtualFleet()
	if err != nil {
		return fmt.Errorf("virtual devices of the demo fleet: %w", err)
	}
	s.virtual = v
	return v.start(ctx)
}

// demoModel creates a token for a language model to try the demo. It revokes the
// token of the previous start, whose secret is lost.
func (s *Server) demoModel(ctx context.Context) error {
	const name = "demo model"
	by := fleet.Principal{Kind: fleet.KindSystem, Name: "demo", Role: fleet.RoleAdmin}
	tokens, err := s.Operators.Tokens(ctx)
	if err != nil {
		return err
	}
	for _, t := range tokens {
		if t.Name == name && t.CreatedBy == by.Name && t.RevokedAt == nil {
			if err := s.Operators.Revoke(ctx, by, t.ID); err != nil {
				return err
			}
		}
	}
	_, s.modelToken, err = s.Operators.NewToken(ctx, by, operator.TokenRequest{Name: name, Kind: fleet.KindModel,
		Role: fleet.RoleOperator, Tools: []string{"*"}})
	return err
}

func (s *Server) simulate(ctx context.Context) error {
	var speech func(string, int) []byte
	if s.cfg.DemoVoice {
		speech = demoSpeech
	}
	f, err := sim.New(sim.Options{OTAURL: s.URL() + "/xiaozhi/ota/", Devices: s.cfg.Demo, Seed: 1,
		Logger: slog.New(slog.DiscardHandler), Speech: speech})
	if err != nil {
		return err
	}
	if s.cfg.DemoVoice {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go talkTo(ctx, f)
	}
	return f.Run(ctx)
}

// Length of a conversation of the demo, and the pause before the next.
const (
	demoTalk      = 12 * time.Second
	demoUtterance = 40 // frames of 60 ms
	demoTalkEvery = 8 * time.Second
)

// demoSpeech is the devices' audio: unintelligible.
func demoSpeech(_ string, n int) []byte {
	if n >= demoUtterance {
		return nil
	}
	return make([]byte, 40)
}

// talkTo simulates a person who talks to one device after another, until ctx
// ends.
func talkTo(ctx context.Context, f *sim.Fleet) {
	for wait := demoTalkEvery / 4; ; wait = demoTalkEvery {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		d := f.Device(rand.IntN(f.Len()))
		if d.Connected() && !d.Talking() {
			d.Talk()
			time.AfterFunc(demoTalk, d.EndTalk)
		}
	}
}

// toneServer starts a voice server on this machine for a demo without one.
func (c *Config) toneServer() (*sim.VoiceServer, error) {
	if !c.DemoVoice || c.VoiceUpstream != "" {
		return nil, nil
	}
	s, err := sim.ListenVoice("127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("voice server of the demo: %w", err)
	}
	c.VoiceUpstream, c.voiceName = s.URL(), "demo tone"
	if c.VoiceUDPAddr == "" || c.VoiceUDPAddr == defaultVoiceUDPAddr { // another demo may use it
		host, _, _ := net.SplitHostPort(c.HTTPAddr)
		c.VoiceUDPAddr = net.JoinHostPort(host, "0")
	}
	return s, nil
}

// demoFirmware creates the simulated devices' releases, unless they exist.
func (s *Server) demoFirmware(ctx context.Context) error {
	for _, version := range demoVersions {
		var images []demoImage
		for _, board := range sim.DefaultBoards {
			data, err := sim.AppImage(board, version, demoImageSize)
			if err != nil {
				return err
			}
			images = append(images, demoImage{board, data})
		}
		if err := s.demoRelease(ctx, version, "For the simulated devices of the demo.", images); err != nil {
			return err
		}
	}
	return nil
}

type demoImage struct {
	board string
	data  []byte
}

// demoRelease releases the images, unless their boards already have this
// version: an operator may have revoked it since.
func (s *Server) demoRelease(ctx context.Context, version, notes string, images []demoImage) error {
	by := fleet.Principal{Kind: fleet.KindSystem, Name: "demo", Role: fleet.RoleOperator}
	r := firmware.ReleaseRequest{Notes: notes}
	for _, i := range images {
		page, err := s.Firmware.Images(ctx, firmware.ImageFilter{Board: i.board, Version: version, Limit: 1})
		if err != nil || len(page.Items) > 0 {
			return err
		}
		img, _, err := s.Firmware.Upload(ctx, by, firmware.ImageUpload{Body: bytes.NewReader(i.data), Board: i.board,
			FileName: i.board + "-" + version + ".bin"})
		if err != nil {
			return err
		}
		r.Images = append(r.Images, img.SHA256)
	}
	_, err := s.Firmware.Create(ctx, by, r)
	return err
}
