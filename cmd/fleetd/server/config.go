package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
)

// A UsageError is a mistake in the configuration, or on the command line of a
// command, that the parser could not find.
type UsageError struct{ error }

// Database says where the truth is kept; the commands that work on the
// database directly share them with serve.
type Database struct {
	DataDir     string `help:"Directory for the embedded PostgreSQL, pictures and the secret key." default:"./data" env:"FLEETD_DATA_DIR" type:"path"`
	DatabaseURL string `help:"PostgreSQL to use instead of the embedded one: postgres://user:password@host/db." env:"FLEETD_DATABASE_URL,DATABASE_URL" placeholder:"URL"`
}

// Config is everything that serve can be told, by flag or environment.
type Config struct {
	Database
	BlobURL         string        `help:"Where pictures are kept (file:///path). Default: blobs below the data directory." env:"FLEETD_BLOB_URL" placeholder:"URL"`
	HTTPAddr        string        `help:"Address of the console, REST and the device endpoints." default:":8080" env:"FLEETD_HTTP_ADDR"`
	MQTTAddr        string        `name:"mqtt-addr" help:"Address of the MQTT broker." default:":1883" env:"FLEETD_MQTT_ADDR"`
	MQTTSAddr       string        `name:"mqtts-addr" help:"Address of the broker for TLS; needs a certificate. Default: :8883 with one, off without." env:"FLEETD_MQTTS_ADDR"`
	TLSCert         string        `help:"Certificate chain (PEM) of the TLS broker." env:"FLEETD_TLS_CERT" type:"existingfile" placeholder:"FILE"`
	TLSKey          string        `help:"Private key (PEM) of the TLS broker." env:"FLEETD_TLS_KEY" type:"existingfile" placeholder:"FILE"`
	ProxyProtocol   []string      `name:"proxy-protocol-from" help:"Addresses (CIDR) of balancers in front of the MQTT addresses. Their connections must begin with a header of the PROXY protocol, version 2; from others such a header is refused." env:"FLEETD_PROXY_PROTOCOL_FROM" placeholder:"CIDR"`
	TrustedProxies  []string      `name:"trusted-proxies" help:"Addresses (CIDR) of proxies in front of the HTTP address whose X-Forwarded-For is believed. One on this machine always is." env:"FLEETD_TRUSTED_PROXIES" placeholder:"CIDR"`
	AdminAddr       string        `help:"Address of /metrics, /healthz, /readyz and /debug/pprof." default:"127.0.0.1:9464" env:"FLEETD_ADMIN_ADDR"`
	PublicURL       string        `help:"Address at which devices and browsers reach this server. Default: from the HTTP address." env:"FLEETD_PUBLIC_URL" placeholder:"URL"`
	MQTTEndpoint    string        `name:"mqtt-endpoint" help:"host:port of the broker as told to devices. Default: the public URL's host and the broker's port." env:"FLEETD_MQTT_ENDPOINT" placeholder:"HOST:PORT"`
	Enrolment       string        `help:"How an unknown device joins: by code, by approval, or at once (open)." enum:"code,approve,open" default:"code" env:"FLEETD_ENROLMENT"`
	MaxWaiting      int           `help:"Devices that wait to be enrolled at one time." default:"10000" env:"FLEETD_MAX_WAITING" placeholder:"N"`
	MaxWaitingNet   int           `name:"max-waiting-per-network" help:"Of these, devices of one network; this machine's own address is not bounded." default:"500" env:"FLEETD_MAX_WAITING_PER_NETWORK" placeholder:"N"`
	WaitingBits4    int           `name:"waiting-network-bits-v4" help:"Bits of an IPv4 address that name its network." default:"24" env:"FLEETD_WAITING_NETWORK_BITS_V4" placeholder:"BITS"`
	WaitingBits6    int           `name:"waiting-network-bits-v6" help:"Bits of an IPv6 address that name its network." default:"64" env:"FLEETD_WAITING_NETWORK_BITS_V6" placeholder:"BITS"`
	SerialProof     string        `help:"What a device that proves its serial number gets: it is let in (accept), or marked for the operator who decides (mark)." enum:"accept,mark" default:"accept" env:"FLEETD_SERIAL_PROOF"`
	AdminPassword   string        `help:"Password of the first operator, admin, at the first start. Default: generated and printed once." env:"FLEETD_ADMIN_PASSWORD" placeholder:"PASSWORD"`
	LogFormat       string        `help:"Log format." enum:"text,json" default:"text" env:"FLEETD_LOG_FORMAT"`
	LogLevel        string        `help:"Least level that is logged." enum:"debug,info,warn,error" default:"info" env:"FLEETD_LOG_LEVEL"`
	NodeName        string        `help:"Name of this server in records. Default: the host name." env:"FLEETD_NODE_NAME" placeholder:"NAME"`
	Retention       time.Duration `help:"How long calls, audit entries and the records of pictures are kept; 0 keeps them for ever. Picture files stay." default:"0" env:"FLEETD_RETENTION"`
	TimeZone        string        `help:"Time zone of devices that have none of their own (Europe/Berlin). Default: this machine's." default:"Local" env:"FLEETD_TIME_ZONE" placeholder:"ZONE"`
	MaxDownloads    int           `help:"Firmware downloads at one time; more wait." default:"500" env:"FLEETD_MAX_DOWNLOADS" placeholder:"N"`
	DownloadRate    int64         `help:"Bytes per second of all firmware downloads together; 0 does not limit." default:"0" env:"FLEETD_DOWNLOAD_RATE" placeholder:"BYTES"`
	ImageKeys       []string      `name:"image-key" help:"Public key (PEM) whose Secure Boot v2 signatures are trusted; can be given several times." env:"FLEETD_IMAGE_KEYS" type:"existingfile" placeholder:"FILE"`
	ManifestKeys    []string      `name:"manifest-key" help:"Public key (PEM, Ed25519) that manifests of images must be signed with; can be given several times. Make one: fleetd image key." env:"FLEETD_MANIFEST_KEYS" type:"existingfile" placeholder:"FILE"`
	RequireSigned   bool          `help:"Refuse images without a signature of one of these keys." env:"FLEETD_REQUIRE_SIGNED"`
	RequireApproval bool          `help:"Campaigns need a second person's approval, whoever plans them; a rollback does not." env:"FLEETD_REQUIRE_APPROVAL"`
	CollectDumps    bool          `name:"collect-core-dumps" help:"Fetch the core dump of a crashed device by itself, once per crash; devices on a hold are left alone." default:"true" negatable:"" env:"FLEETD_COLLECT_CORE_DUMPS"`
	Demo            int           `help:"Also run this many simulated devices." default:"0" env:"FLEETD_DEMO" placeholder:"N"`
	DemoVirtual     string        `help:"Also run three virtual devices, with the programs in this directory: vdevice and mkimage, built from firmware/." env:"FLEETD_DEMO_VIRTUAL" placeholder:"DIR"`

	// Parsed by check.
	proxyProtocol, trustedProxies []netip.Prefix

	// Version of this program, as the console shows it and devices learn it.
	Version string `kong:"-" json:"-"`
	// Log receives what happens. Default: text or JSON on stderr, as LogFormat and LogLevel say.
	Log *slog.Logger `kong:"-" json:"-"`

	// For tests, whose devices are quicker than real ones.
	timers     campaign.DeploymentTimers
	engineTick time.Duration
}

// check fills in what follows from other settings and refuses what could not
// work, before anything is touched.
func (c *Config) check() error {
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return errors.New("--tls-cert and --tls-key belong together: give both or neither")
	}
	if c.MQTTSAddr != "" && c.TLSCert == "" {
		return errors.New("--mqtts-addr needs a certificate: give --tls-cert and --tls-key")
	}
	if c.TLSCert != "" && c.MQTTSAddr == "" {
		c.MQTTSAddr = ":8883"
	}
	if c.NodeName == "" {
		c.NodeName, _ = os.Hostname()
	}
	if c.Retention < 0 || c.Demo < 0 || c.Demo > 20_000 {
		return errors.New("--retention cannot be negative, and --demo lies between 0 and 20000")
	}
	if c.MaxWaiting < 1 || c.MaxWaiting > 100_000 || c.MaxWaitingNet < 1 {
		return errors.New("--max-waiting lies between 1 and 100000, and --max-waiting-per-network is 1 or more")
	}
	if c.WaitingBits4 < 1 || c.WaitingBits4 > 32 || c.WaitingBits6 < 1 || c.WaitingBits6 > 128 {
		return errors.New("--waiting-network-bits-v4 lies between 1 and 32, and --waiting-network-bits-v6 between 1 and 128")
	}
	if c.MaxDownloads < 0 || c.DownloadRate < 0 {
		return errors.New("--max-downloads and --download-rate cannot be negative")
	}
	if c.RequireSigned && len(c.ImageKeys) == 0 {
		return errors.New("--require-signed needs to know whose signatures: give --image-key")
	}
	if c.AdminPassword != "" && len(c.AdminPassword) < fleet.MinPassword {
		return fmt.Errorf("--admin-password is too short: a password has at least %d characters", fleet.MinPassword)
	}
	if err := c.checkProxies(); err != nil {
		return err
	}
	if err := c.checkPublicURL(); err != nil {
		return err
	}
	return c.checkEndpoint()
}

func (c *Config) checkProxies() (err error) {
	if c.proxyProtocol, err = prefixes("--proxy-protocol-from", c.ProxyProtocol); err != nil {
		return err
	}
	if c.trustedProxies, err = prefixes("--trusted-proxies", c.TrustedProxies); err != nil {
		return err
	}
	for _, p := range c.proxyProtocol {
		if p.Overlaps(loopback) && (c.Demo > 0 || c.DemoVirtual != "") {
			return errors.New("--demo runs devices on this machine, which --proxy-protocol-from takes for a balancer; leave one out")
		}
	}
	return nil
}

var loopback = netip.MustParsePrefix("127.0.0.0/8")

// prefixes reads networks; an address alone is a network of one.
func prefixes(flag string, texts []string) (all []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			ip, ipErr := netip.ParseAddr(text)
			if ipErr != nil {
				return nil, fmt.Errorf("%s %q is no network; write 10.0.0.0/8, 2001:db8::/32 or an address", flag, text)
			}
			p = netip.PrefixFrom(ip, ip.BitLen())
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s %q: leave out the ::ffff: before an IPv4 address", flag, text)
		}
		all = append(all, p.Masked())
	}
	return all, nil
}

func (c *Config) checkPublicURL() error {
	if c.PublicURL == "" {
		host, port, err := net.SplitHostPort(c.HTTPAddr)
		if err != nil {
			return fmt.Errorf("--http-addr %q is no address; write host:port or :port", c.HTTPAddr)
		}
		c.PublicURL = "http://" + net.JoinHostPort(reachableHost(host), port)
	}
	u, err := url.Parse(c.PublicURL)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Hostname() == "" || u.RawQuery != "" {
		return fmt.Errorf("--public-url %q is no address; write http://host or https://host", c.PublicURL)
	}
	c.PublicURL = strings.TrimSuffix(c.PublicURL, "/")
	return nil
}

// checkEndpoint holds the endpoint to what a stock device survives.
func (c *Config) checkEndpoint() error {
	if c.MQTTEndpoint == "" {
		u, _ := url.Parse(c.PublicURL)
		_, port, err := net.SplitHostPort(c.MQTTAddr)
		if err != nil {
			return fmt.Errorf("--mqtt-addr %q is no address; write host:port or :port", c.MQTTAddr)
		}
		c.MQTTEndpoint = net.JoinHostPort(u.Hostname(), port)
	}
	if err := enrolment.CheckEndpoint(c.MQTTEndpoint); err != nil {
		return fmt.Errorf("--mqtt-endpoint: %w", err)
	}
	if strings.HasSuffix(c.MQTTEndpoint, ":8883") && c.TLSCert == "" {
		return errors.New("devices speak TLS on port 8883 and plain MQTT on every other; choose another port, or give --tls-cert and --tls-key")
	}
	return nil
}

// reachableHost turns a listen host into one that others can use.
func reachableHost(host string) string {
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		return host
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && !n.IP.IsLoopback() && !n.IP.IsLinkLocalUnicast() {
			return n.IP.String()
		}
	}
	return "127.0.0.1"
}

func (c *Config) logger() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	var level slog.Level
	_ = level.UnmarshalText([]byte(c.LogLevel)) // kong has checked it
	o := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, o))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, o))
}

func (c *Config) enrolmentMode() fleet.EnrolmentMode { return fleet.EnrolmentMode(c.Enrolment) }

type ConfigCommand struct {
	Check checkConfig `cmd:"" help:"Check the configuration from flags and environment, and exit."`
	Print printConfig `cmd:"" help:"Print the configuration in effect as JSON, without secrets."`
}

type checkConfig struct{ Config }

func (c *checkConfig) Run() error { return c.check() }

type printConfig struct{ Config }

func (c *printConfig) Run() error {
	if err := c.check(); err != nil {
		return err
	}
	c.DatabaseURL, c.AdminPassword = redactURL(c.DatabaseURL), redact(c.AdminPassword)
	out := json.NewEncoder(os.Stdout)
	out.SetIndent("", "  ")
	return out.Encode(c.Config)
}

func redact(secret string) string {
	if secret == "" {
		return ""
	}
	return "(set)"
}

// redactURL hides what can be a password: in its place in a URL, as a
// parameter, and in the other form, of key=value pairs, everything.
func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme == "" {
		return redact(s)
	}
	q := u.Query()
	for name := range q {
		if strings.Contains(name, "password") {
			q.Set(name, "xxxxx")
		}
	}
	u.RawQuery = q.Encode()
	return u.Redacted()
}
