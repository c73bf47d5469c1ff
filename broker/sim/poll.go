package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

const (
	maxAnswer    = 8192 // bytes; the HTTP client dead-locks from this length on
	maxPollTries = 10
	firstRetry   = 10 * time.Second
)

// An answer is the part of the answer to one OTA check that a device uses, apart from the
// settings that it writes to NVS.
type answer struct {
	mqtt, websocket bool // the section was there
	code, challenge string
	upgrade         order // an image to install now; without url: none
}

// checkVersion implements the loop of Application::CheckNewVersion (1.5): polls, upgrades and
// activation. After ten failures in a row it gives up and returns an empty answer. An error is a
// crash or a hang.
func (d *Device) checkVersion(ctx context.Context) (answer, error) {
	if d.newBuildHas(FaultMQTTWithoutPoll) {
		return answer{}, nil
	}
	failures, wait := 0, firstRetry
	for ctx.Err() == nil {
		saw, err := d.poll(ctx)
		if fatal(err) {
			return answer{}, err
		}
		if err != nil {
			d.stats().pollFailures.Add(1)
			d.log().Debug("OTA check failed", "err", err)
			if failures++; failures == maxPollTries {
				return answer{}, nil
			}
			d.sleep(ctx, wait)
			wait *= 2
			continue
		}
		failures, wait = 0, firstRetry
		if saw.upgrade.url != "" && d.upgrade(ctx, saw.upgrade) {
			return answer{}, nil // restarting
		}
		d.confirm()
		if saw.code == "" && saw.challenge == "" {
			d.setCode("")
			return saw, nil
		}
		d.activate(ctx, saw)
	}
	return answer{}, nil
}

func fatal(err error) bool {
	_, crash := errors.AsType[*crashError](err)
	return crash || errors.Is(err, errHang)
}

// poll makes one OTA check.
func (d *Device) poll(ctx context.Context) (answer, error) {
	d.stats().polls.Add(1)
	resp, err := d.post(ctx, d.fleet.options.OTAURL, d.systemInfo())
	if err != nil {
		return answer{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return answer{}, fmt.Errorf("OTA check: status %d", resp.StatusCode)
	}
	if len(resp.TransferEncoding) > 0 {
		// The boundaries of the chunks decide whether a real device reads the whole answer.
		d.stats().chunkedAnswers.Add(1)
		d.log().Warn("OTA answer is chunked: a real device may lose its end")
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return answer{}, err
	}
	if len(body) >= maxAnswer {
		return answer{}, errHang
	}
	if !json.Valid(body) {
		return answer{}, errors.New("OTA check: the answer is not JSON")
	}
	return d.take(value(body[value(body).skipSpace(0):]))
}

// take handles an answer section by section, in the firmware's order.
func (d *Device) take(body value) (saw answer, err error) {
	activation := body.field("activation")
	saw.code, saw.challenge = activation.field("code").text(), activation.field("challenge").text()
	for _, section := range []string{"mqtt", "websocket"} {
		if err := d.nvs.save(section, body.field(section)); err != nil {
			return answer{}, err
		}
	}
	saw.mqtt, saw.websocket = body.field("mqtt").isObject(), body.field("websocket").isObject()
	saw.upgrade, err = d.offered(body.field("firmware"))
	return saw, err
}

// offered returns the image in the firmware section if it is due.
func (d *Device) offered(firmware value) (order, error) {
	version, url, force := firmware.field("version"), firmware.field("url"), firmware.field("force")
	if !version.isString() || !url.isString() {
		return order{}, nil
	}
	due, err := newerVersion(d.running().build.version, version.text())
	if err != nil {
		return order{}, &crashError{"firmware.version: " + err.Error()}
	}
	if due || force.isNumber() && force.number() == 1 {
		return order{url.text(), firmware.field("job").text()}, nil
	}
	return order{}, nil
}

// post sends a body with the headers of 1.2.
func (d *Device) post(ctx context.Context, url, body string) (*http.Response, error) {
	req, err := d.request(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	h := req.Header
	h.Set("Device-Id", d.id.mac)
	h.Set("Client-Id", d.id.uuid)
	h.Set("User-Agent", d.board.name+"/"+d.running().build.version)
	h.Set("Accept-Language", language)
	h.Set("Activation-Version", "1")
	if d.id.serial != "" {
		h.Set("Activation-Version", "2")
		h.Set("Serial-Number", d.id.serial)
	}
	h.Set("Content-Type", "application/json")
	return d.fleet.fetch(req)
}
