package sim

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

const (
	upgradeNotice  = 3 * time.Second
	upgradePrepare = time.Second
	upgradeAlert   = 3 * time.Second // how long a failure stays on the screen
)

var errRefused = errors.New("the late-true fault refuses the image")

// codeOf returns the included firmware's code for a failure.
func codeOf(err error) string {
	if errors.Is(err, errRefused) {
		return "corrupt"
	}
	return "unavailable"
}

// upgrade implements Application::UpgradeFirmware. It reports whether the device restarts into
// the new image.
func (d *Device) upgrade(ctx context.Context, o order) bool {
	if d.faults.has(FaultSilentAccept) {
		return false
	}
	d.closeChannel()
	if !d.sleep(ctx, upgradeNotice) || !d.sleep(ctx, upgradePrepare) {
		return false
	}
	b, err := d.download(ctx, o)
	if err != nil {
		d.reportFailure(o.job, codeOf(err), err)
		d.stats().upgradesFailed.Add(1)
		d.log().Info("upgrade failed", "err", err)
		d.sleep(ctx, upgradeAlert)
		return false
	}
	d.install(b)
	d.remember(o, b)
	d.stats().upgrades.Add(1)
	d.log().Info("upgrade installed", "version", b.version)
	d.restart(ctx)
	return true
}

// download streams an image through the checks of esp_ota_end (7.3).
func (d *Device) download(ctx context.Context, o order) (*build, error) {
	target, err := d.nextSlot()
	if err != nil {
		return nil, err
	}
	if d.faults.has(FaultNoGet) {
		return nil, errors.New("the no-get fault keeps the download from starting")
	}
	resp, err := d.get(ctx, o.url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	d.stats().downloads.Add(1)
	if err := d.acceptable(resp, target); err != nil {
		return nil, err
	}
	image := newAppImage(d.board.chip.imageID)
	n, err := io.Copy(io.MultiWriter(image, &progressReport{d: d, job: o.job, total: resp.ContentLength}), d.cut(resp))
	d.stats().downloadedBytes.Add(n)
	if err != nil {
		return nil, err
	}
	if n < resp.ContentLength {
		return nil, fmt.Errorf("download ended after %d of %d bytes", n, resp.ContentLength)
	}
	return d.accept(image)
}

// acceptable checks the answer before the first byte is written.
func (d *Device) acceptable(resp *http.Response, target *partition) error {
	switch {
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("download: status %d", resp.StatusCode)
	case resp.ContentLength <= 0:
		return errors.New("download: no Content-Length")
	case d.onTrial():
		return errors.New("esp_ota_begin: the running image is not confirmed yet")
	case resp.ContentLength > int64(target.size):
		return fmt.Errorf("image of %d bytes does not fit slot %s of %d", resp.ContentLength, target.label, target.size)
	}
	return nil
}

// cut returns the body, or the part of it that the cut fault lets through.
func (d *Device) cut(resp *http.Response) io.Reader {
	if !d.faults.has(FaultCut) {
		return resp.Body
	}
	part := float64(resp.ContentLength) * d.fleet.fault(FaultCut).Percent / 100
	return io.LimitReader(resp.Body, int64(part))
}

func (d *Device) accept(image *appImage) (*build, error) {
	b, err := image.finish()
	if err != nil {
		return nil, err
	}
	if d.faults.has(FaultLateTrue) {
		return nil, errRefused
	}
	if d.faults.has(FaultWrongBuild) {
		b.elf = hex.EncodeToString(digest(0, "wrong build", b.elf))
	}
	return d.fleet.shared(b), nil
}

// downloadAssets downloads from the URL set by self.assets.set_download_url. The URL is erased
// first, so there is one attempt (4.8).
func (d *Device) downloadAssets(ctx context.Context) {
	url, target := d.nvs.assetsURL, d.board.partition("assets")
	d.nvs.assetsURL = ""
	if url == "" || target == nil {
		return
	}
	resp, err := d.get(ctx, url)
	if err != nil {
		d.log().Info("assets not downloaded", "err", err)
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK || resp.ContentLength < 12 || resp.ContentLength > int64(target.size) {
		d.log().Info("assets refused", "status", resp.StatusCode, "size", resp.ContentLength)
		return
	}
	n, _ := io.Copy(io.Discard, resp.Body)
	d.stats().downloads.Add(1)
	d.stats().downloadedBytes.Add(n)
}
