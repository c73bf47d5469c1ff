package sim

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	activateTries = 10
	activateWait  = 3 * time.Second  // after 202
	activateRetry = 10 * time.Second // after anything else but 200
)

// activate shows the code and polls up to ten times whether somebody has claimed it (1.5).
// Meanwhile there is no MQTT.
func (d *Device) activate(ctx context.Context, saw answer) {
	if d.Code() != saw.code {
		d.setCode(saw.code)
		d.log().Info("device shows an activation code", "code", saw.code)
	}
	d.stats().activating.Add(1)
	defer d.stats().activating.Add(-1)
	for range activateTries {
		status := d.askActivated(ctx, saw.challenge)
		if status == http.StatusOK {
			d.stats().activations.Add(1)
			return
		}
		wait := activateRetry
		if status == http.StatusAccepted {
			wait = activateWait
		}
		if !d.sleep(ctx, wait) {
			return
		}
	}
}

// askActivated posts to /activate and returns the status. It returns 0 if there is no challenge,
// and so no request, or no answer.
func (d *Device) askActivated(ctx context.Context, challenge string) int {
	if challenge == "" {
		return 0
	}
	url := strings.TrimSuffix(d.fleet.options.OTAURL, "/") + "/activate"
	resp, err := d.post(ctx, url, d.activationBody(challenge))
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

func (d *Device) activationBody(challenge string) string {
	if d.id.serial == "" {
		return "{}"
	}
	return signedActivation(d.id.serial, challenge, d.fuseKey())
}

func signedActivation(serial, challenge string, key []byte) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(challenge))
	return fmt.Sprintf(`{"algorithm":"hmac-sha256","serial_number":"%s","challenge":"%s","hmac":"%s"}`,
		serial, challenge, hex.EncodeToString(mac.Sum(nil)))
}

// fuseKey returns eFuse key 0.
func (d *Device) fuseKey() []byte { return digest(d.fleet.options.Seed, "fuse key", d.id.mac) }

// FuseKey returns the contents of the device's fuses as burnt by its maker: the serial number and
// the key to prove it. Most boards have neither.
func (d *Device) FuseKey() (serial string, key []byte) {
	if d.id.serial == "" {
		return "", nil
	}
	return d.id.serial, d.fuseKey()
}
