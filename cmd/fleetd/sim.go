package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"fleetd/broker/sim"
	"fleetd/broker/sim/mqtt5"
	"fleetd/cmd/fleetd/client"
	"fleetd/cmd/fleetd/terminal"
)

// simCommand runs simulated boards, and simulated devices of MCP over MQTT 5. The latter join as
// real ones do: an administrator creates them over REST. Their credentials stay in memory.
type simCommand struct {
	sim.Command
	MQTT5       int    `name:"mqtt5" placeholder:"N" help:"Also run this many devices that speak MCP over MQTT 5. They are created over REST, with the token of an administrator; existing ones get new credentials."`
	MQTT5SDK    int    `name:"mqtt5-sdk" placeholder:"N" help:"How many of these behave like the ESP-IDF SDK 0.0.1."`
	MQTT5Prefix string `name:"mqtt5-prefix" default:"sim-" help:"What their ids begin with; a number from 1 follows."`

	client.Server
}

// Run runs the devices until ctx ends.
func (c *simCommand) Run(ctx context.Context) error {
	if c.Images != "" || c.VoiceServer != "" {
		return c.Command.Run(ctx)
	}
	if c.Devices == 0 && c.MQTT5 == 0 {
		return terminal.UsageError{Err: errors.New("no devices: --devices and --mqtt5 are 0")}
	}
	if c.MQTT5 == 0 && c.MQTT5SDK > 0 {
		return terminal.UsageError{Err: errors.New("--mqtt5-sdk is a part of the devices of --mqtt5, which is 0")}
	}
	g, ctx := errgroup.WithContext(ctx)
	if c.Devices != 0 {
		g.Go(func() error { return c.Command.Run(ctx) })
	}
	if c.MQTT5 != 0 {
		g.Go(func() error { return c.runMQTT5(ctx) })
	}
	return g.Wait()
}

func (c *simCommand) runMQTT5(ctx context.Context) error {
	creator, err := c.DeviceCreator()
	if err != nil {
		return err
	}
	f, err := mqtt5.New(mqtt5.Options{
		Devices: c.MQTT5, SDK: c.MQTT5SDK, Prefix: c.MQTT5Prefix, ConnectRate: c.ConnectRate, Keepalive: c.Keepalive,
		LocalAddrs: c.LocalAddrs, Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Credentials: func(ctx context.Context, id string) (mqtt5.Credentials, error) {
			created, err := creator.Create(ctx, id)
			return mqtt5.Credentials(created), err
		},
	})
	if err != nil {
		return terminal.UsageError{Err: err}
	}
	ctx, stop := context.WithCancel(ctx)
	printed := make(chan struct{})
	go func() {
		defer close(printed)
		printStats(ctx, f, c.Progress)
	}()
	err = f.Run(ctx)
	stop()
	<-printed
	return err
}

// printStats prints the fleet's counters, but only when one has changed.
func printStats(ctx context.Context, f *mqtt5.Fleet, every time.Duration) {
	if every <= 0 {
		return
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for last := ""; ; {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if line := f.Stats().String(); line != last {
			fmt.Fprintln(os.Stderr, line)
			last = line
		}
	}
}
