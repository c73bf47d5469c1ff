package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"os"

	"fleetd/broker/sim"
)

type serveCommand struct{ config }

// Run serves until ctx ends or a part dies.
func (c *serveCommand) Run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return usageError{err}
	}
	log := c.logger()
	s, err := startServer(ctx, &c.config, log)
	if err != nil {
		return err
	}
	defer s.stop()
	s.greet(os.Stdout)
	if err := s.runDemo(ctx, os.Stdout); err != nil {
		return err
	}
	err = s.wait(ctx)
	log.Info("stopping")
	return err
}

// greet tells a person where to go. A generated password is shown this once;
// one that was given is known, and output ends up in logs.
func (s *server) greet(w io.Writer) {
	fmt.Fprintf(w, "\nfleetd %s is up\n\n", buildVersion())
	fmt.Fprintf(w, "  Console    %s\n", s.cfg.PublicURL)
	switch {
	case s.firstPassword == "":
		fmt.Fprintln(w, "  Operator   as before; a forgotten password is changed with: fleetd user passwd NAME")
	case s.firstPassword == s.cfg.AdminPassword:
		fmt.Fprintln(w, "  Operator   admin, with the password of --admin-password")
	default:
		fmt.Fprintf(w, "  Operator   admin\n  Password   %s   (shown this once; change it with: fleetd user passwd admin)\n",
			s.firstPassword)
	}
	fmt.Fprintf(w, "  OTA URL    %s/xiaozhi/ota/   (for the Wi-Fi page of a xiaozhi-esp32 board)\n", s.cfg.PublicURL)
	fmt.Fprintf(w, "  MQTT       %s\n", s.cfg.MQTTEndpoint)
	fmt.Fprintf(w, "  Enrolment  %s\n\n", s.cfg.Enrolment)
}

// localURL is where this machine reaches the HTTP listener.
func (s *server) localURL() string {
	host, port, _ := net.SplitHostPort(s.httpListener.Addr().String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return "http://" + net.JoinHostPort(cmp.Or(host, "127.0.0.1"), port)
}

type simCommand struct{ sim.Command }

func (c *simCommand) Run(ctx context.Context) error { return c.Command.Run(ctx) }
