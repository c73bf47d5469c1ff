package server

import (
	"fmt"
	"io"

	"fleetd/web/console/pages"
)

// Greet prints where people and devices reach the server. It prints a generated
// password this once. It does not print a given password, because the user has
// it, and output ends up in logs.
func (s *Server) Greet(w io.Writer) {
	fmt.Fprintf(w, "\nfleetd %s is up\n\n", s.cfg.Version)
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
	if pages.LocalOnly(s.cfg.PublicURL) {
		fmt.Fprintf(w, "             Boards cannot reach it: it is the address of this machine for itself. Start with %s", s.openToNetwork())
	}
	fmt.Fprintf(w, "  MQTT       %s\n", s.cfg.MQTTEndpoint)
	fmt.Fprintf(w, "  MCP        %s/mcp   (for Claude, VS Code, Cursor and others: docs/mcp.md)\n", s.cfg.PublicURL)
	if s.modelToken != "" {
		fmt.Fprintf(w, "  Token      %s   (for a language model, until the next start of this demo)\n", s.modelToken)
	}
	fmt.Fprintf(w, "  Enrolment  %s\n\n", s.cfg.Enrolment)
	if s.virtual != nil {
		s.virtual.greet(w)
	}
}

// openToNetwork explains how boards can reach the server, and at which address.
func (s *Server) openToNetwork() string {
	how := "LAN=1 make run, or --http-addr :8080 --mqtt-addr :1883"
	if at := s.cfg.networkURL(); at != "" {
		return fmt.Sprintf("%s;\n             boards then use %s/xiaozhi/ota/\n", how, at)
	}
	return how + "\n"
}
