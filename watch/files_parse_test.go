package watch

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// parseText parses a file and returns its objects, as "position: object", and the errors.
func parseText(t *testing.T, text string) (objects, malformed []string) {
	t.Helper()
	logger, _ := testLogger(t)
	p := newParser("n1", logger)
	p.begin()
	p.file(t.Context(), "f.yaml", []byte(text))
	objects, malformed = []string{}, []string{}
	for _, f := range p.found {
		objects = append(objects, f.position().String()+": "+f.key.String())
	}
	for _, err := range p.malformed {
		malformed = append(malformed, fmt.Sprintf("%v: %v", err.position, err.err))
	}
	return objects, malformed
}

func newParser(nodeName string, logger klog.Logger) *parser {
	return &parser{nodeName: nodeName, logger: logger}
}

func TestDocuments(t *testing.T) {
	const (
		svcA = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"
		svcB = "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\n  namespace: other\n"
	)
	for _, test := range []struct {
		name      string
		text      string
		objects   []string
		malformed []string
	}{
		{name: "an empty file"},
		{name: "blank lines and comments", text: "\n# nothing\n  # here\n\n---\n# nor here\n"},
		{name: "one document", text: svcA, objects: []string{"f.yaml: document 1: services default/a"}},
		{
			name: "several documents", text: "# first\n" + svcA + "---\n" + svcB,
			objects: []string{"f.yaml: document 1: services default/a", "f.yaml: document 2: services other/b"},
		},
		{
			name:    "a leading marker, an empty document and a trailing marker",
			text:    "---\n" + svcA + "---\n---\n" + svcB + "---\n",
			objects: []string{"f.yaml: document 1: services default/a", "f.yaml: document 2: services other/b"},
		},
		{
			name:    "markers with comments and an end-of-document marker",
			text:    "%YAML 1.1\n--- # first\n" + svcA + "...\n--- # second\n" + svcB,
			objects: []string{"f.yaml: document 1: services default/a", "f.yaml: document 2: services other/b"},
		},
		{
			name:    "line ends and a byte order mark of Windows",
			text:    "\xef\xbb\xbf" + strings.ReplaceAll(svcA+"---\n"+svcB, "\n", "\r\n"),
			objects: []string{"f.yaml: document 1: services default/a", "f.yaml: document 2: services other/b"},
		},
		{
			name: "dashes in a text are no marker",
			text: "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  annotations:\n    note: |\n      a\n    " +
				"  ---\n      b\n    line: a --- b\n",
			objects: []string{"f.yaml: document 1: services default/a"},
		},
		{
			name: "the List that kubectl prints",
			text: "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n" +
				"- apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice\n  addressType: IPv4\n  endpoints:\n  - " +
				"addresses:\n    - 10.1.0.1\n" +
				"  metadata:\n    name: a-1\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n1\n" +
				"- apiVersion: networking.k8s.io/v1\n  kind: ServiceCIDR\n  metadata:\n    name: kubernetes\nkind: " +
				"List\nmetadata:\n  resourceVersion: \"\"\n",
			objects: []string{
				"f.yaml: document 1, item 1: services default/a",
				"f.yaml: document 1, item 2: endpointslices.discovery.k8s.io default/a-1",
				"f.yaml: document 1, item 3: nodes n1",
				"f.yaml: document 1, item 4: servicecidrs.networking.k8s.io kubernetes",
			},
		},
		{
			name: "an indented List with comments and blank lines, in a second document",
			text: svcA + "---\nkind: List\napiVersion: v1\nitems:\n\n  # the first\n  - kind: Service\n    " +
				"apiVersion: v1\n    metadata: {name: b}\n" +
				"# the second\n\n  -\n    kind: Service\n    apiVersion: v1\n    metadata:\n      # a comment\n      " +
				"name: c\n",
			objects: []string{
				"f.yaml: document 1: services default/a", "f.yaml: document 2, item 1: services default/b",
				"f.yaml: document 2, item 2: services default/c",
			},
		},
		{
			name: "a ServiceList whose items have no type",
			text: "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata:\n    name: a\n- metadata:\n    name: b\n",
			objects: []string{"f.yaml: document 1, item 1: services default/a",
				"f.yaml: document 1, item 2: services default/b"},
		},
		{name: "an empty List", text: "apiVersion: v1\nitems: []\nkind: List\n"},
		{
			name:    "a List in flow style",
			text:    "apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Service, metadata: {name: a}}]\n",
			objects: []string{"f.yaml: document 1, item 1: services default/a"},
		},
		{
			name:    "a document in flow style",
			text:    "# flow\n{apiVersion: v1, kind: Service, metadata: {name: a}}\n",
			objects: []string{"f.yaml: document 1: services default/a"},
		},
		{
			name: "a List whose items share an anchor is read as a whole",
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: &m\n    name: a\n" +
				"- apiVersion: v1\n  kind: Service\n  metadata:\n    <<: *m\n    namespace: other\n",
			objects: []string{"f.yaml: document 1, item 1: services default/a",
				"f.yaml: document 1, item 2: services other/a"},
		},
		{
			name: "a text that looks like an item is read as a whole",
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: " +
				"a\n    annotations:\n      note: \"x\n- y\"\n",
			objects: []string{"f.yaml: document 1, item 1: services default/a"},
		},
		{
			name:    "JSON",
			text:    `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}`,
			objects: []string{"f.yaml: document 1: services default/a"},
		},
		{
			name: "JSON values one after the other, and a YAML document",
			text: "\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n\"metadata\":{\"name\":\"a\"}}\n\n" +
				"{\"apiVersion\":\"v1\",\"kind\":\"Node\",\"metadata\":{\"name\":\"n1\"}}\n---\n" + svcB,
			objects: []string{
				"f.yaml: document 1: services default/a", "f.yaml: document 2: nodes n1",
				"f.yaml: document 3: services other/b",
			},
		},
		{
			name: "a JSON List",
			text: "{\n \"apiVersion\": \"v1\",\n \"items\": [\n  {\"apiVersion\":\"v1\",\"kind\":\"Service\",\n   " +
				"\"metadata\":{\"name\":\"a\"}},\n  " +
				"{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b\"}}\n ],\n \"kind\": " +
				"\"List\"\n}\n",
			objects: []string{"f.yaml: document 1, item 1: services default/a",
				"f.yaml: document 1, item 2: services default/b"},
		},
		{
			name: "other kinds and what S1 leaves out",
			text: "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n---\napiVersion: serving.knative.dev/v1\nkind: " +
				"Service\nmetadata: {name: k}\n---\n" +
				"apiVersion: v1\nkind: Node\nmetadata: {name: n2}\n---\napiVersion: v1\nkind: PodList\nitems:\n- " +
				"metadata: {name: p}\n",
		},
		{
			name:    "a namespace on a Node does not count",
			text:    "apiVersion: v1\nkind: Node\nmetadata: {name: n1, namespace: x}\n",
			objects: []string{"f.yaml: document 1: nodes n1"},
		},

		{
			name:      "a malformed document between good ones",
			text:      svcA + "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: a: b\n---\n" + svcB,
			objects:   []string{"f.yaml: document 1: services default/a", "f.yaml: document 3: services other/b"},
			malformed: []string{"f.yaml: document 2: not YAML: line 4: mapping values are not allowed in this context"},
		},
		{
			name: "an item that is not YAML spoils the document, and no other",
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    " +
				"name: a\n- apiVersion: v1\n  kind: \"Service\n  metadata:\n    name: b\n---\n" + svcB,
			objects:   []string{"f.yaml: document 2: services other/b"},
			malformed: []string{"f.yaml: document 1: not YAML: line 12: found unexpected end of stream"},
		},
		{
			name: "an item of the wrong type leaves the others alone",
			text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: " +
				"a\n  spec:\n    ports: many\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: b\n- " +
				"apiVersion: v1\n  kind: Service\n",
			objects: []string{"f.yaml: document 1, item 2: services default/b"},
			malformed: []string{
				"f.yaml: document 1, item 1: Service a: json: cannot unmarshal string into Go struct field " +
					"ServiceSpec.spec.ports of type []v1.ServicePort",
				"f.yaml: document 1, item 3: Service without a name",
			},
		},
		{
			name: "a JSON item of the wrong type",
			text: "{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n" +
				"{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\",\"namespace\":\"x\"}," +
				"\"spec\":1},\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b\"}}]}",
			objects: []string{"f.yaml: document 1, item 2: services default/b"},
			malformed: []string{"f.yaml: document 1, item 1: Service x/a: json: cannot unmarshal number into Go " +
				"struct field Service.spec of type v1.ServiceSpec"},
		},
		{
			name: "documents in flow style are not separated by commas",
			text: "{apiVersion: v1, kind: Pod}, {apiVersion: v1, kind: Pod}\n",
			malformed: []string{
				"f.yaml: document 1: not JSON: invalid character 'a' looking for beginning of object key string",
			},
		},
		{
			name: "an item that is not JSON spoils the List, and not what comes before it",
			text: "{\"kind\":\"Node\",\"apiVersion\":\"v1\",\"metadata\":{\"name\":\"n1\"}}{\"kind\":\"List\"," +
				"\"apiVersion\":\"v1\",\"items\":[\n{\"apiVersion\":\"v1\",\"kind\":\"Service\",\n" +
				"\"metadata\":{\"name\" \"a\"}},\n" +
				"{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"b]}\\\"\"}}]}",
			objects:   []string{"f.yaml: document 1: nodes n1"},
			malformed: []string{"f.yaml: document 2: not JSON: invalid character '\"' after object key"},
		},
		{
			name:      "a JSON List with something between its items",
			text:      "{\"kind\":\"List\",\"apiVersion\":\"v1\",\n\"items\":[{} {}]}",
			malformed: []string{"f.yaml: document 1: not JSON: invalid character '{' after array element"},
		},
		{
			name: "JSON that ends too early, after a good value",
			text: "{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"}}\n" +
				"{\"apiVersion\":\"v1\",\n\"kind\":",
			objects:   []string{"f.yaml: document 1: services default/a"},
			malformed: []string{"f.yaml: document 2: not JSON: unexpected EOF"},
		},
		{
			name:      "neither JSON nor YAML",
			text:      "{\"apiVersion\":\"v1\",\n\"kind\":}}\n---\n" + svcA,
			objects:   []string{"f.yaml: document 2: services default/a"},
			malformed: []string{"f.yaml: document 1: not JSON: invalid character '}' looking for beginning of value"},
		},
		{name: "a document without a kind", text: "metadata:\n  name: a\n",
			malformed: []string{"f.yaml: document 1: not a Kubernetes object: it has no kind"}},
		{name: "a document without an apiVersion", text: "kind: Service\nmetadata:\n  name: a\n",
			malformed: []string{"f.yaml: document 1: not a Kubernetes object: Service without an apiVersion"}},
		{name: "a document that is a text", text: "hello\n", malformed: []string{"f.yaml: document 1: not a " +
			"Kubernetes object: json: cannot unmarshal string into Go value of type manifest.typeAndItems"}},
		{name: "a List whose items are none", text: "apiVersion: v1\nkind: List\nitems: 3\n",
			malformed: []string{"f.yaml: document 1: items of a List: json: cannot unmarshal number into Go value of " +
				"type " + reflect.TypeFor[[]json.RawMessage]().String()}}, // which Go 1.27 calls otherwise
		{name: "a List within a List", text: "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: List\n  " +
			"items: []\n", malformed: []string{"f.yaml: document 1, item 1: List within a List"}},
		{
			name: "NUL bytes at the end of a document", text: svcA + "---\n" + svcB + strings.Repeat("\x00", 4096),
			objects:   []string{"f.yaml: document 1: services default/a"},
			malformed: []string{"f.yaml: document 2: it has NUL bytes: it was not written completely, or is not UTF-8"},
		},
		{name: "nothing but NUL bytes", text: "\x00\x00", malformed: []string{
			"f.yaml: document 1: it has NUL bytes: it was not written completely, or is not UTF-8"}},
		{name: "UTF-16", text: "\xff\xfea\x00", malformed: []string{
			"f.yaml: document 1: it has NUL bytes: it was not written completely, or is not UTF-8"}},
		{
			name: "something after an end marker", text: svcA + "...\n" + svcB,
			malformed: []string{`f.yaml: document 1: content after the end marker "..."`},
		},
		{
			name: "a separator that is none", text: svcA + "---\n" + svcB + "--- x\n---\n" + svcA,
			objects:   []string{"f.yaml: document 1: services default/a", "f.yaml: document 3: services default/a"},
			malformed: []string{"f.yaml: document 2: invalid Yaml document separator: x"},
		},
		{name: "a document that is null", text: "---\nnull\n---\n~\n"},
		{
			name: "a List whose end is missing", text: "apiVersion: v1\nitems:\n- metadata: {name: a}\nkind: Lis",
			malformed: []string{"f.yaml: document 1: Lis has items and is not a List: is the file complete?"},
		},
		{
			name: "an object whose end is missing", text: "apiVersion: v1\nkind: Serv",
			malformed: []string{"f.yaml: document 1: v1 Serv and nothing else: is the file complete?"},
		},
		{
			name: "what needs no name",
			text: "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [a.yaml]\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			objects, malformed := parseText(t, test.text)
			assert.Equal(t, append([]string{}, test.objects...), objects)
			assert.Equal(t, append([]string{}, test.malformed...), malformed)
		})
	}
}

func TestDocumentsOfAnUnsupportedVersionAreNamedInTheLog(t *testing.T) {
	config := ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0))
	logger := ktesting.NewLogger(t, config)
	p := newParser("", logger)
	p.begin()
	p.file(t.Context(), "f.yaml", []byte("apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: "+
		"{name: a}\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: p}\n"))
	assert.Empty(t, p.found)
	assert.Empty(t, p.malformed)
	logs := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	assert.Contains(t, logs, `apiVersion="discovery.k8s.io/v1beta1"`)
	assert.NotContains(t, logs, "Pod", "what is not meant to be used is not worth a line")
}

func TestDocumentsThatAreReadAgainAreWhatTheyWere(t *testing.T) {
	const items = "items:\n- metadata: {name: n1}\n"
	text := "apiVersion: v1\nkind: ServiceList\n" + items + "---\napiVersion: v1\nkind: NodeList\n" + items
	logger, _ := testLogger(t)
	p := newParser("n1", logger)
	for range 2 {
		p.begin()
		p.file(t.Context(), "f.yaml", []byte(text))
		require.Empty(t, p.malformed)
		require.Len(t, p.found, 2)
		assert.Equal(t, key{services, "default", "n1"}, p.found[0].key)
		assert.Equal(t, key{nodes, "", "n1"}, p.found[1].key, "the text alone does not tell")
		assert.NotEqual(t, p.found[0].sum, p.found[1].sum, "nor does it say whether an object has changed")
	}
}

// cluster returns n Services with an EndpointSlice of m endpoints each, as kubectl prints them.
func cluster(n, m int) (yamlText, jsonText string) {
	var y, j strings.Builder
	y.WriteString("apiVersion: v1\nitems:\n")
	j.WriteString("{\n\"apiVersion\": \"v1\",\n\"items\": [\n")
	for i := range n {
		ip := fmt.Sprintf("10.%d.%d", i/250, i%250)
		fmt.Fprintf(&y, `- apiVersion: v1
  kind: Service
  metadata:
    creationTimestamp: "2026-01-01T00:00:00Z"
    labels:
      app: svc-%[1]d
    name: svc-%[1]d
    namespace: default
    resourceVersion: "%[1]d"
  spec:
    clusterIP: %[2]s.1
    clusterIPs:
    - %[2]s.1
    internalTrafficPolicy: Cluster
    ipFamilies:
    - IPv4
    ports:
    - name: http
      port: 80
      protocol: TCP
      targetPort: 8080
    selector:
      app: svc-%[1]d
    type: ClusterIP
- addressType: IPv4
  apiVersion: discovery.k8s.io/v1
  endpoints:
`, i, ip)
		fmt.Fprintf(&j, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"svc-%[1]d",
"namespace":"default","labels":{"app":"svc-%[1]d"}},
"spec":{"clusterIP":"%[2]s.1","clusterIPs":["%[2]s.1"],"ipFamilies":["IPv4"],"ports":[
{"name":"http","port":80,"protocol":"TCP","targetPort":8080}],"type":"ClusterIP"}},
{"addressType":"IPv4","apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice",
"metadata":{"name":"svc-%[1]d-x","namespace":"default","labels":{"kubernetes.io/service-name":"svc-%[1]d"}},
"ports":[{"name":"http","port":8080,"protocol":"TCP"}],"endpoints":[
`, i, ip)
		for e := range m {
			fmt.Fprintf(&y, `  - addresses:
    - %[1]s.%[2]d
    conditions:
      ready: true
      serving: true
      terminating: false
    nodeName: node-%[2]d
    targetRef:
      kind: Pod
      name: svc-%[3]d-%[2]d
      namespace: default
      uid: 7f6b0ec5-0000-4f00-8000-%012[3]d
    zone: zone-a
`, ip, e, i)
			comma := ","
			if e == m-1 {
				comma = "]}"
			}
			fmt.Fprintf(&j, `{"addresses":["%[1]s.%[2]d"],"conditions":{"ready":true,"serving":true,
"terminating":false},"nodeName":"node-%[2]d",
"targetRef":{"kind":"Pod","name":"svc-%[3]d-%[2]d","namespace":"default"},"zone":"zone-a"}%[4]s
`, ip, e, i, comma)
		}
		fmt.Fprintf(&y, `  kind: EndpointSlice
  metadata:
    labels:
      kubernetes.io/service-name: svc-%[1]d
    name: svc-%[1]d-x
    namespace: default
  ports:
  - name: http
    port: 8080
    protocol: TCP
`, i)
		if i < n-1 {
			j.WriteString(",")
		}
	}
	y.WriteString("kind: List\nmetadata:\n  resourceVersion: \"\"\n")
	j.WriteString("],\n\"kind\": \"List\"}\n")
	return y.String(), j.String()
}

func TestDocumentsOfALargeClusterAreAllFound(t *testing.T) {
	yamlText, jsonText := cluster(50, 3)
	for _, text := range []string{yamlText, jsonText} {
		objects, malformed := parseText(t, text)
		assert.Len(t, objects, 100)
		assert.Empty(t, malformed)
	}
}

// TestAFileThatIsStillBeingWrittenDeletesNothing: kubectl prints a List. Whatever part of it has been written, the
// objects that are still missing do not count as deleted.
func TestAFileThatIsStillBeingWrittenDeletesNothing(t *testing.T) {
	yamlText, jsonText := cluster(2, 1)
	logger, _ := testLogger(t)
	for _, text := range []string{yamlText, jsonText} {
		s := newFileState("", logger)
		read := func(text string) []string {
			changes, _, err := s.read(t.Context(), location{fsys: files("f.yaml", text)})
			require.NoError(t, err)
			return changeNames(changes)
		}
		require.Len(t, read(text), 4)
		for n := range len(text) {
			require.Empty(t, read(text[:n]), "%q", text[:n])
		}
	}
}

func FuzzDocuments(f *testing.F) {
	yamlText, jsonText := cluster(2, 2)
	f.Add([]byte(yamlText))
	f.Add([]byte(jsonText))
	f.Add([]byte("---\n{a: b}\n...\n--- |\n x\n"))
	f.Add([]byte("items:\n  -\n - a\nkind: List\n"))
	f.Add([]byte("items:\n- a: &x [1]\n- *x\nkind: List\napiVersion: v1\n"))
	f.Add([]byte("{}{}[\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		logger, _ := testLogger(t)
		p := newParser("n1", logger)
		read := func() ([]found, []*documentError) {
			p.begin()
			p.file(t.Context(), "f.yaml", data)
			return p.found, p.malformed
		}
		first, malformed := read()
		for _, o := range first {
			if o.position().document < 1 || o.key.name == "" || o.object == nil {
				t.Errorf("%s: object %q without a name or nothing", o.position(), o.key)
			}
		}
		for _, err := range malformed {
			if err.document < 1 {
				t.Errorf("%v: where is that?", err.err)
			}
		}
		again, malformedAgain := read()
		if len(again) != len(first) || len(malformedAgain) != len(malformed) {
			t.Fatalf("read again: %d objects and %d errors, not %d and %d", len(again), len(malformedAgain), len(first),
				len(malformed))
		}
		for i, o := range again {
			if o.key != first[i].key || o.sum != first[i].sum {
				t.Errorf("read again: %q, not %q", o.key, first[i].key)
			}
			if object, err := p.decode(o); err != nil || keyOf(object) != o.key {
				t.Errorf("decoded again: %v, %v, not %q", object, err, o.key)
			}
		}
	})
}
