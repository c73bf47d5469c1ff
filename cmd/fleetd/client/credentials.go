package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// DeviceCredentials let one device of MCP over MQTT 5 connect.
type DeviceCredentials struct {
	Broker   string `json:"broker"` // host:port; port 8883 means TLS
	ClientID string `json:"client_id"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// String keeps the password out of errors.
func (c DeviceCredentials) String() string { return c.ClientID }

// A DeviceCreator creates devices of MCP over MQTT 5. Its methods may be called concurrently.
type DeviceCreator struct{ server Server }

// DeviceCreator returns a creator with the token of the flags, which it reads now.
func (c Server) DeviceCreator() (*DeviceCreator, error) {
	if err := c.readToken(); err != nil {
		return nil, err
	}
	c.TokenFile = ""
	return &DeviceCreator{c}, nil
}

// Create creates a device and returns its credentials. If the device exists, it gets new
// credentials, which revoke the previous ones.
func (d *DeviceCreator) Create(ctx context.Context, id string) (DeviceCredentials, error) {
	server := d.server
	answer, err := server.do(ctx, http.MethodPost, "/devices", map[string]string{"id": id})
	if p, ok := errors.AsType[*problemError](err); ok && p.code == "device_exists" {
		answer, err = server.do(ctx, http.MethodPost, "/devices/"+url.PathEscape(id)+"/credentials", nil)
	}
	if err != nil {
		return DeviceCredentials{}, err
	}
	var created DeviceCredentials
	if err := json.Unmarshal(answer, &created); err != nil {
		return DeviceCredentials{}, fmt.Errorf("the server's answer has no credentials: %w", err)
	}
	return created, nil
}
