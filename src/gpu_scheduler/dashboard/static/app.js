// node_modules/preact/dist/preact.module.js
var n;
var l;
var u;
var t;
var i;
var r;
var o;
var e;
var f;
var c;
var a;
var s;
var h;
var p;
var v;
var y;
var d = {};
var w = [];
var _ = /acit|ex(?:s|g|n|p|$)|rph|grid|ows|mnc|ntw|ine[ch]|zoo|^ord|itera/i;
var g = Array.isArray;
function m(n3, l5) {
  for (var u5 in l5) n3[u5] = l5[u5];
  return n3;
}
function b(n3) {
  n3 && n3.parentNode && n3.parentNode.removeChild(n3);
}
function k(l5, u5, t4) {
  var i4, r4, o4, e4 = {};
  for (o4 in u5) "key" == o4 ? i4 = u5[o4] : "ref" == o4 ? r4 = u5[o4] : e4[o4] = u5[o4];
  if (arguments.length > 2 && (e4.children = arguments.length > 3 ? n.call(arguments, 2) : t4), "function" == typeof l5 && null != l5.defaultProps) for (o4 in l5.defaultProps) void 0 === e4[o4] && (e4[o4] = l5.defaultProps[o4]);
  return x(l5, e4, i4, r4, null);
}
function x(n3, t4, i4, r4, o4) {
  var e4 = { type: n3, props: t4, key: i4, ref: r4, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: void 0, __v: null == o4 ? ++u : o4, __i: -1, __u: 0 };
  return null == o4 && null != l.vnode && l.vnode(e4), e4;
}
function S(n3) {
  return n3.children;
}
function C(n3, l5) {
  this.props = n3, this.context = l5;
}
function $(n3, l5) {
  if (null == l5) return n3.__ ? $(n3.__, n3.__i + 1) : null;
  for (var u5; l5 < n3.__k.length; l5++) if (null != (u5 = n3.__k[l5]) && null != u5.__e) return u5.__e;
  return "function" == typeof n3.type ? $(n3) : null;
}
function I(n3) {
  if (n3.__P && n3.__d) {
    var u5 = n3.__v, t4 = u5.__e, i4 = [], r4 = [], o4 = m({}, u5);
    o4.__v = u5.__v + 1, l.vnode && l.vnode(o4), q(n3.__P, o4, u5, n3.__n, n3.__P.namespaceURI, 32 & u5.__u ? [t4] : null, i4, null == t4 ? $(u5) : t4, !!(32 & u5.__u), r4), o4.__v = u5.__v, o4.__.__k[o4.__i] = o4, D(i4, o4, r4), u5.__e = u5.__ = null, o4.__e != t4 && P(o4);
  }
}
function P(n3) {
  if (null != (n3 = n3.__) && null != n3.__c) return n3.__e = n3.__c.base = null, n3.__k.some(function(l5) {
    if (null != l5 && null != l5.__e) return n3.__e = n3.__c.base = l5.__e;
  }), P(n3);
}
function A(n3) {
  (!n3.__d && (n3.__d = true) && i.push(n3) && !H.__r++ || r != l.debounceRendering) && ((r = l.debounceRendering) || o)(H);
}
function H() {
  try {
    for (var n3, l5 = 1; i.length; ) i.length > l5 && i.sort(e), n3 = i.shift(), l5 = i.length, I(n3);
  } finally {
    i.length = H.__r = 0;
  }
}
function L(n3, l5, u5, t4, i4, r4, o4, e4, f5, c4, a4) {
  var s4, h5, p5, v4, y5, _5, g4 = t4 && t4.__k || w, m5 = l5.length;
  for (f5 = T(u5, l5, g4, f5, m5), s4 = 0; s4 < m5; s4++) null != (p5 = u5.__k[s4]) && (h5 = -1 != p5.__i && g4[p5.__i] || d, p5.__i = s4, _5 = q(n3, p5, h5, i4, r4, o4, e4, f5, c4, a4), v4 = p5.__e, p5.ref && h5.ref != p5.ref && (h5.ref && J(h5.ref, null, p5), a4.push(p5.ref, p5.__c || v4, p5)), null == y5 && null != v4 && (y5 = v4), 4 & p5.__u ? (f5 = j(p5, f5, n3), h5.__e && (h5.__e = null)) : "function" == typeof p5.type && void 0 !== _5 ? f5 = _5 : v4 && (f5 = v4.nextSibling), p5.__u &= -7);
  return u5.__e = y5, f5;
}
function T(n3, l5, u5, t4, i4) {
  var r4, o4, e4, f5, c4, a4 = u5.length, s4 = a4, h5 = 0;
  for (n3.__k = new Array(i4), r4 = 0; r4 < i4; r4++) null != (o4 = l5[r4]) && "boolean" != typeof o4 && "function" != typeof o4 ? ("string" == typeof o4 || "number" == typeof o4 || "bigint" == typeof o4 || o4.constructor == String ? o4 = n3.__k[r4] = x(null, o4, null, null, null) : g(o4) ? o4 = n3.__k[r4] = x(S, { children: o4 }, null, null, null) : void 0 === o4.constructor && o4.__b > 0 ? o4 = n3.__k[r4] = x(o4.type, o4.props, o4.key, o4.ref ? o4.ref : null, o4.__v) : n3.__k[r4] = o4, f5 = r4 + h5, o4.__ = n3, o4.__b = n3.__b + 1, e4 = null, -1 != (c4 = o4.__i = O(o4, u5, f5, s4)) && (s4--, (e4 = u5[c4]) && (e4.__u |= 2)), null == e4 || null == e4.__v ? (-1 == c4 && (i4 > a4 ? h5-- : i4 < a4 && h5++), "function" != typeof o4.type && (o4.__u |= 4)) : c4 != f5 && (c4 == f5 - 1 ? h5-- : c4 == f5 + 1 ? h5++ : (c4 > f5 ? h5-- : h5++, o4.__u |= 4))) : n3.__k[r4] = null;
  if (s4) for (r4 = 0; r4 < a4; r4++) null != (e4 = u5[r4]) && 0 == (2 & e4.__u) && (e4.__e == t4 && (t4 = $(e4)), K(e4, e4));
  return t4;
}
function j(n3, l5, u5) {
  var t4, i4;
  if ("function" == typeof n3.type) {
    for (t4 = n3.__k, i4 = 0; t4 && i4 < t4.length; i4++) t4[i4] && (t4[i4].__ = n3, l5 = j(t4[i4], l5, u5));
    return l5;
  }
  n3.__e != l5 && (l5 && n3.type && !l5.parentNode && (l5 = $(n3)), l5 = u5.insertBefore(n3.__e, l5 || null));
  do {
    l5 = l5 && l5.nextSibling;
  } while (null != l5 && 8 == l5.nodeType);
  return l5;
}
function O(n3, l5, u5, t4) {
  var i4, r4, o4, e4 = n3.key, f5 = n3.type, c4 = l5[u5], a4 = null != c4 && 0 == (2 & c4.__u);
  if (null === c4 && null == e4 || a4 && e4 == c4.key && f5 == c4.type) return u5;
  if (t4 > (a4 ? 1 : 0)) {
    for (i4 = u5 - 1, r4 = u5 + 1; i4 >= 0 || r4 < l5.length; ) if (null != (c4 = l5[o4 = i4 >= 0 ? i4-- : r4++]) && 0 == (2 & c4.__u) && e4 == c4.key && f5 == c4.type) return o4;
  }
  return -1;
}
function z(n3, l5, u5) {
  "-" == l5[0] ? n3.setProperty(l5, null == u5 ? "" : u5) : n3[l5] = null == u5 ? "" : "number" != typeof u5 || _.test(l5) ? u5 : u5 + "px";
}
function N(n3, l5, u5, t4, i4) {
  var r4, o4;
  n: if ("style" == l5) if ("string" == typeof u5) n3.style.cssText = u5;
  else {
    if ("string" == typeof t4 && (n3.style.cssText = t4 = ""), t4) for (l5 in t4) u5 && l5 in u5 || z(n3.style, l5, "");
    if (u5) for (l5 in u5) t4 && u5[l5] == t4[l5] || z(n3.style, l5, u5[l5]);
  }
  else if ("o" == l5[0] && "n" == l5[1]) r4 = l5 != (l5 = l5.replace(s, "$1")), o4 = l5.toLowerCase(), l5 = o4 in n3 || "onFocusOut" == l5 || "onFocusIn" == l5 ? o4.slice(2) : l5.slice(2), n3.l || (n3.l = {}), n3.l[l5 + r4] = u5, u5 ? t4 ? u5[a] = t4[a] : (u5[a] = h, n3.addEventListener(l5, r4 ? v : p, r4)) : n3.removeEventListener(l5, r4 ? v : p, r4);
  else {
    if ("http://www.w3.org/2000/svg" == i4) l5 = l5.replace(/xlink(H|:h)/, "h").replace(/sName$/, "s");
    else if ("width" != l5 && "height" != l5 && "href" != l5 && "list" != l5 && "form" != l5 && "tabIndex" != l5 && "download" != l5 && "rowSpan" != l5 && "colSpan" != l5 && "role" != l5 && "popover" != l5 && l5 in n3) try {
      n3[l5] = null == u5 ? "" : u5;
      break n;
    } catch (n4) {
    }
    "function" == typeof u5 || (null == u5 || false === u5 && "-" != l5[4] ? n3.removeAttribute(l5) : n3.setAttribute(l5, "popover" == l5 && 1 == u5 ? "" : u5));
  }
}
function V(n3) {
  return function(u5) {
    if (this.l) {
      var t4 = this.l[u5.type + n3];
      if (null == u5[c]) u5[c] = h++;
      else if (u5[c] < t4[a]) return;
      return t4(l.event ? l.event(u5) : u5);
    }
  };
}
function q(n3, u5, t4, i4, r4, o4, e4, f5, c4, a4) {
  var s4, h5, p5, v4, y5, d4, _5, k4, x3, M2, I2, P2, A4, H2, T3, j4, F2 = u5.type;
  if (void 0 !== u5.constructor) return null;
  128 & t4.__u && (c4 = !!(32 & t4.__u), o4 = [f5 = u5.__e = t4.__e]), (s4 = l.__b) && s4(u5);
  n: if ("function" == typeof F2) {
    h5 = e4.length;
    try {
      if (x3 = u5.props, M2 = F2.prototype && F2.prototype.render, I2 = (s4 = F2.contextType) && i4[s4.__c], P2 = s4 ? I2 ? I2.props.value : s4.__ : i4, t4.__c ? k4 = (p5 = u5.__c = t4.__c).__ = p5.__E : (M2 ? u5.__c = p5 = new F2(x3, P2) : (u5.__c = p5 = new C(x3, P2), p5.constructor = F2, p5.render = Q), I2 && I2.sub(p5), p5.state || (p5.state = {}), p5.__n = i4, v4 = p5.__d = true, p5.__h = [], p5._sb = []), M2 && null == p5.__s && (p5.__s = p5.state), M2 && null != F2.getDerivedStateFromProps && (p5.__s == p5.state && (p5.__s = m({}, p5.__s)), m(p5.__s, F2.getDerivedStateFromProps(x3, p5.__s))), y5 = p5.props, d4 = p5.state, p5.__v = u5, v4) M2 && null == F2.getDerivedStateFromProps && null != p5.componentWillMount && p5.componentWillMount(), M2 && null != p5.componentDidMount && p5.__h.push(p5.componentDidMount);
      else {
        if (M2 && null == F2.getDerivedStateFromProps && x3 !== y5 && null != p5.componentWillReceiveProps && p5.componentWillReceiveProps(x3, P2), u5.__v == t4.__v || !p5.__e && null != p5.shouldComponentUpdate && false === p5.shouldComponentUpdate(x3, p5.__s, P2)) {
          u5.__v != t4.__v && (p5.props = x3, p5.state = p5.__s, p5.__d = false), u5.__e = t4.__e, u5.__k = t4.__k, u5.__k.some(function(n4) {
            n4 && (n4.__ = u5);
          }), w.push.apply(p5.__h, p5._sb), p5._sb = [], p5.__h.length && e4.push(p5), f5 = $(t4);
          break n;
        }
        null != p5.componentWillUpdate && p5.componentWillUpdate(x3, p5.__s, P2), M2 && null != p5.componentDidUpdate && p5.__h.push(function() {
          p5.componentDidUpdate(y5, d4, _5);
        });
      }
      if (p5.context = P2, p5.props = x3, p5.__P = n3, p5.__e = false, A4 = l.__r, H2 = 0, M2) p5.state = p5.__s, p5.__d = false, A4 && A4(u5), s4 = p5.render(p5.props, p5.state, p5.context), w.push.apply(p5.__h, p5._sb), p5._sb = [];
      else do {
        p5.__d = false, A4 && A4(u5), s4 = p5.render(p5.props, p5.state, p5.context), p5.state = p5.__s;
      } while (p5.__d && ++H2 < 25);
      p5.state = p5.__s, null != p5.getChildContext && (i4 = m(m({}, i4), p5.getChildContext())), M2 && !v4 && null != p5.getSnapshotBeforeUpdate && (_5 = p5.getSnapshotBeforeUpdate(y5, d4)), T3 = null != s4 && s4.type === S && null == s4.key ? E(s4.props.children) : s4, f5 = L(n3, g(T3) ? T3 : [T3], u5, t4, i4, r4, o4, e4, f5, c4, a4), p5.base = u5.__e, u5.__u &= -161, p5.__h.length && e4.push(p5), k4 && (p5.__E = p5.__ = null);
    } catch (n4) {
      if (e4.length = h5, u5.__v = null, c4 || null != o4) {
        if (n4.then) {
          for (u5.__u |= c4 ? 160 : 128; f5 && 8 == f5.nodeType && f5.nextSibling; ) f5 = f5.nextSibling;
          null != o4 && (o4[o4.indexOf(f5)] = null), u5.__e = f5;
        } else if (null != o4) for (j4 = o4.length; j4--; ) b(o4[j4]);
      } else u5.__e = t4.__e;
      null == u5.__k && (u5.__k = t4.__k || []), n4.then || B(u5), l.__e(n4, u5, t4);
    }
  } else null == o4 && u5.__v == t4.__v ? (u5.__k = t4.__k, u5.__e = t4.__e) : f5 = u5.__e = G(t4.__e, u5, t4, i4, r4, o4, e4, c4, a4);
  return (s4 = l.diffed) && s4(u5), 128 & u5.__u ? void 0 : f5;
}
function B(n3) {
  n3 && (n3.__c && (n3.__c.__e = true), n3.__k && n3.__k.some(B));
}
function D(n3, u5, t4) {
  for (var i4 = 0; i4 < t4.length; i4++) J(t4[i4], t4[++i4], t4[++i4]);
  l.__c && l.__c(u5, n3), n3.some(function(u6) {
    try {
      n3 = u6.__h, u6.__h = [], n3.some(function(n4) {
        n4.call(u6);
      });
    } catch (n4) {
      l.__e(n4, u6.__v);
    }
  });
}
function E(n3) {
  return "object" != typeof n3 || null == n3 || n3.__b > 0 ? n3 : g(n3) ? n3.map(E) : void 0 !== n3.constructor ? null : m({}, n3);
}
function G(u5, t4, i4, r4, o4, e4, f5, c4, a4) {
  var s4, h5, p5, v4, y5, w4, _5, m5 = i4.props || d, k4 = t4.props, x3 = t4.type;
  if ("svg" == x3 ? o4 = "http://www.w3.org/2000/svg" : "math" == x3 ? o4 = "http://www.w3.org/1998/Math/MathML" : o4 || (o4 = "http://www.w3.org/1999/xhtml"), null != e4) {
    for (s4 = 0; s4 < e4.length; s4++) if ((y5 = e4[s4]) && "setAttribute" in y5 == !!x3 && (x3 ? y5.localName == x3 : 3 == y5.nodeType)) {
      u5 = y5, e4[s4] = null;
      break;
    }
  }
  if (null == u5) {
    if (null == x3) return document.createTextNode(k4);
    u5 = document.createElementNS(o4, x3, k4.is && k4), c4 && (l.__m && l.__m(t4, e4), c4 = false), e4 = null;
  }
  if (null == x3) m5 === k4 || c4 && u5.data == k4 || (u5.data = k4);
  else {
    if (e4 = "textarea" == x3 && null != k4.defaultValue ? null : e4 && n.call(u5.childNodes), !c4 && null != e4) for (m5 = {}, s4 = 0; s4 < u5.attributes.length; s4++) m5[(y5 = u5.attributes[s4]).name] = y5.value;
    for (s4 in m5) y5 = m5[s4], "dangerouslySetInnerHTML" == s4 ? p5 = y5 : "children" == s4 || s4 in k4 || "value" == s4 && "defaultValue" in k4 || "checked" == s4 && "defaultChecked" in k4 || N(u5, s4, null, y5, o4);
    for (s4 in k4) y5 = k4[s4], "children" == s4 ? v4 = y5 : "dangerouslySetInnerHTML" == s4 ? h5 = y5 : "value" == s4 ? w4 = y5 : "checked" == s4 ? _5 = y5 : c4 && "function" != typeof y5 || m5[s4] === y5 || N(u5, s4, y5, m5[s4], o4);
    if (h5) c4 || p5 && (h5.__html == p5.__html || h5.__html == u5.innerHTML) || (u5.innerHTML = h5.__html), t4.__k = [];
    else if (p5 && (u5.innerHTML = ""), L("template" == t4.type ? u5.content : u5, g(v4) ? v4 : [v4], t4, i4, r4, "foreignObject" == x3 ? "http://www.w3.org/1999/xhtml" : o4, e4, f5, e4 ? e4[0] : i4.__k && $(i4, 0), c4, a4), null != e4) for (s4 = e4.length; s4--; ) b(e4[s4]);
    c4 && "textarea" != x3 || (s4 = "value", "progress" == x3 && null == w4 ? u5.removeAttribute("value") : null != w4 && (w4 !== u5[s4] || "progress" == x3 && !w4 || "option" == x3 && w4 != m5[s4]) && N(u5, s4, w4, m5[s4], o4), s4 = "checked", null != _5 && _5 != u5[s4] && N(u5, s4, _5, m5[s4], o4));
  }
  return u5;
}
function J(n3, u5, t4) {
  try {
    if ("function" == typeof n3) {
      var i4 = "function" == typeof n3.__u;
      i4 && n3.__u(), i4 && null == u5 || (n3.__u = n3(u5));
    } else n3.current = u5;
  } catch (n4) {
    l.__e(n4, t4);
  }
}
function K(n3, u5, t4) {
  var i4, r4;
  if (l.unmount && l.unmount(n3), (i4 = n3.ref) && (i4.current && i4.current != n3.__e || J(i4, null, u5)), null != (i4 = n3.__c)) {
    if (i4.componentWillUnmount) try {
      i4.componentWillUnmount();
    } catch (n4) {
      l.__e(n4, u5);
    }
    i4.base = i4.__P = i4.__n = null;
  }
  if (i4 = n3.__k) for (r4 = 0; r4 < i4.length; r4++) i4[r4] && K(i4[r4], u5, t4 || "function" != typeof n3.type);
  t4 || b(n3.__e), n3.__c = n3.__ = n3.__e = void 0;
}
function Q(n3, l5, u5) {
  return this.constructor(n3, u5);
}
function R(u5, t4, i4) {
  var r4, o4, e4, f5;
  t4 == document && (t4 = document.documentElement), l.__ && l.__(u5, t4), o4 = (r4 = "function" == typeof i4) ? null : i4 && i4.__k || t4.__k, e4 = [], f5 = [], q(t4, u5 = (!r4 && i4 || t4).__k = k(S, null, [u5]), o4 || d, d, t4.namespaceURI, !r4 && i4 ? [i4] : o4 ? null : t4.firstChild ? n.call(t4.childNodes) : null, e4, !r4 && i4 ? i4 : o4 ? o4.__e : t4.firstChild, r4, f5), D(e4, u5, f5), u5.props.children = null;
}
n = w.slice, l = { __e: function(n3, l5, u5, t4) {
  for (var i4, r4, o4; l5 = l5.__; ) if ((i4 = l5.__c) && !i4.__) try {
    if ((r4 = i4.constructor) && null != r4.getDerivedStateFromError && (i4.setState(r4.getDerivedStateFromError(n3)), o4 = i4.__d), null != i4.componentDidCatch && (i4.componentDidCatch(n3, t4 || {}), o4 = i4.__d), o4) return i4.__E = i4;
  } catch (l6) {
    n3 = l6;
  }
  throw n3;
} }, u = 0, t = function(n3) {
  return null != n3 && void 0 === n3.constructor;
}, C.prototype.setState = function(n3, l5) {
  var u5;
  u5 = null != this.__s && this.__s != this.state ? this.__s : this.__s = m({}, this.state), "function" == typeof n3 && (n3 = n3(m({}, u5), this.props)), n3 && m(u5, n3), null != n3 && this.__v && (l5 && this._sb.push(l5), A(this));
}, C.prototype.forceUpdate = function(n3) {
  this.__v && (this.__e = true, n3 && this.__h.push(n3), A(this));
}, C.prototype.render = S, i = [], o = "function" == typeof Promise ? Promise.prototype.then.bind(Promise.resolve()) : setTimeout, e = function(n3, l5) {
  return n3.__v.__b - l5.__v.__b;
}, H.__r = 0, f = Math.random().toString(8), c = "__d" + f, a = "__a" + f, s = /(PointerCapture)$|Capture$/i, h = 0, p = V(false), v = V(true), y = 0;

// node_modules/preact/hooks/dist/hooks.module.js
var t2;
var r2;
var u2;
var i2;
var o2 = 0;
var f2 = [];
var c2 = l;
var e2 = c2.__b;
var a2 = c2.__r;
var v2 = c2.diffed;
var l2 = c2.__c;
var m2 = c2.unmount;
var p2 = c2.__;
function s2(n3, t4) {
  c2.__h && c2.__h(r2, n3, o2 || t4), o2 = 0;
  var u5 = r2.__H || (r2.__H = { __: [], __h: [] });
  return n3 >= u5.__.length && u5.__.push({}), u5.__[n3];
}
function d2(n3) {
  return o2 = 1, y2(D2, n3);
}
function y2(n3, u5, i4) {
  var o4 = s2(t2++, 2);
  if (o4.t = n3, !o4.__c && (o4.__ = [i4 ? i4(u5) : D2(void 0, u5), function(n4) {
    var t4 = o4.__N ? o4.__N[0] : o4.__[0], r4 = o4.t(t4, n4);
    t4 !== r4 && (o4.__N = [r4, o4.__[1]], o4.__c.setState({}));
  }], o4.__c = r2, !r2.__f)) {
    var f5 = function(n4, t4, r4) {
      if (!o4.__c.__H) return true;
      var u6 = false, i5 = o4.__c.props !== n4;
      if (o4.__c.__H.__.some(function(n5) {
        if (n5.__N) {
          u6 = true;
          var t5 = n5.__[0];
          n5.__ = n5.__N, n5.__N = void 0, t5 !== n5.__[0] && (i5 = true);
        }
      }), c4) {
        var f6 = c4.call(this, n4, t4, r4);
        return u6 ? f6 || i5 : f6;
      }
      return !u6 || i5;
    };
    r2.__f = true;
    var c4 = r2.shouldComponentUpdate, e4 = r2.componentWillUpdate;
    r2.componentWillUpdate = function(n4, t4, r4) {
      if (this.__e) {
        var u6 = c4;
        c4 = void 0, f5(n4, t4, r4), c4 = u6;
      }
      e4 && e4.call(this, n4, t4, r4);
    }, r2.shouldComponentUpdate = f5;
  }
  return o4.__N || o4.__;
}
function h2(n3, u5) {
  var i4 = s2(t2++, 3);
  !c2.__s && C2(i4.__H, u5) && (i4.__ = n3, i4.u = u5, r2.__H.__h.push(i4));
}
function _2(n3, u5) {
  var i4 = s2(t2++, 4);
  !c2.__s && C2(i4.__H, u5) && (i4.__ = n3, i4.u = u5, r2.__h.push(i4));
}
function A2(n3) {
  return o2 = 5, T2(function() {
    return { current: n3 };
  }, []);
}
function T2(n3, r4) {
  var u5 = s2(t2++, 7);
  return C2(u5.__H, r4) && (u5.__ = n3(), u5.__H = r4, u5.__h = n3), u5.__;
}
function q2(n3, t4) {
  return o2 = 8, T2(function() {
    return n3;
  }, t4);
}
function j2() {
  for (var n3; n3 = f2.shift(); ) {
    var t4 = n3.__H;
    if (n3.__P && t4) try {
      t4.__h.some(z2), t4.__h.some(B2), t4.__h = [];
    } catch (r4) {
      t4.__h = [], c2.__e(r4, n3.__v);
    }
  }
}
c2.__b = function(n3) {
  r2 = null, e2 && e2(n3);
}, c2.__ = function(n3, t4) {
  n3 && t4.__k && t4.__k.__m && (n3.__m = t4.__k.__m), p2 && p2(n3, t4);
}, c2.__r = function(n3) {
  a2 && a2(n3), t2 = 0;
  var i4 = (r2 = n3.__c).__H;
  i4 && (u2 === r2 ? (i4.__h = [], r2.__h = [], i4.__.some(function(n4) {
    n4.__N && (n4.__ = n4.__N), n4.u = n4.__N = void 0;
  })) : (i4.__h.some(z2), i4.__h.some(B2), i4.__h = [], t2 = 0)), u2 = r2;
}, c2.diffed = function(n3) {
  v2 && v2(n3);
  var t4 = n3.__c;
  t4 && t4.__H && (t4.__H.__h.length && (1 !== f2.push(t4) && i2 === c2.requestAnimationFrame || ((i2 = c2.requestAnimationFrame) || w2)(j2)), t4.__H.__.some(function(n4) {
    n4.u && (n4.__H = n4.u, n4.u = void 0);
  })), u2 = r2 = null;
}, c2.__c = function(n3, t4) {
  t4.some(function(n4) {
    try {
      n4.__h.some(z2), n4.__h = n4.__h.filter(function(n5) {
        return !n5.__ || B2(n5);
      });
    } catch (r4) {
      t4.some(function(n5) {
        n5.__h && (n5.__h = []);
      }), t4 = [], c2.__e(r4, n4.__v);
    }
  }), l2 && l2(n3, t4);
}, c2.unmount = function(n3) {
  m2 && m2(n3);
  var t4, r4 = n3.__c;
  r4 && r4.__H && (r4.__H.__.some(function(n4) {
    try {
      z2(n4);
    } catch (n5) {
      t4 = n5;
    }
  }), r4.__H = void 0, t4 && c2.__e(t4, r4.__v));
};
var k2 = "function" == typeof requestAnimationFrame;
function w2(n3) {
  var t4, r4 = function() {
    clearTimeout(u5), k2 && cancelAnimationFrame(t4), setTimeout(n3);
  }, u5 = setTimeout(r4, 35);
  k2 && (t4 = requestAnimationFrame(r4));
}
function z2(n3) {
  var t4 = r2, u5 = n3.__c;
  "function" == typeof u5 && (n3.__c = void 0, u5()), r2 = t4;
}
function B2(n3) {
  var t4 = r2;
  n3.__c = n3.__(), r2 = t4;
}
function C2(n3, t4) {
  return !n3 || n3.length !== t4.length || t4.some(function(t5, r4) {
    return t5 !== n3[r4];
  });
}
function D2(n3, t4) {
  return "function" == typeof t4 ? t4(n3) : t4;
}

// node_modules/@preact/signals-core/dist/signals-core.module.js
var i3 = Symbol.for("preact-signals");
function t3() {
  if (!(v3 > 1)) {
    var i4, t4 = false;
    !(function() {
      var i5 = c3;
      c3 = void 0;
      while (void 0 !== i5) {
        var t5 = i5.S;
        if (t5.v === i5.v) {
          for (var r5 = t5.t; void 0 !== r5; r5 = r5.x) if (r5.i === i5.i) r5.i = t5.i;
        }
        i5 = i5.o;
      }
    })();
    while (void 0 !== h3) {
      var r4 = h3;
      h3 = void 0;
      s3++;
      while (void 0 !== r4) {
        var n3 = r4.u;
        r4.u = void 0;
        r4.f &= -3;
        if (!(8 & r4.f) && w3(r4)) try {
          r4.c();
        } catch (r5) {
          if (!t4) {
            i4 = r5;
            t4 = true;
          }
        }
        r4 = n3;
      }
    }
    s3 = 0;
    v3--;
    if (t4) throw i4;
  } else v3--;
}
function r3(i4) {
  if (v3 > 0) return i4();
  u3 = ++e3;
  v3++;
  try {
    return i4();
  } finally {
    t3();
  }
}
var n2;
var o3 = void 0;
function f3(i4) {
  var t4 = o3, r4 = n2;
  o3 = void 0;
  n2 = void 0;
  try {
    return i4();
  } finally {
    o3 = t4;
    n2 = r4;
  }
}
var h3 = void 0;
var v3 = 0;
var s3 = 0;
var e3 = 0;
var u3 = 0;
var c3 = void 0;
var a3 = 0;
function d3(i4) {
  if (void 0 !== o3) {
    var t4 = i4.n;
    if (void 0 === t4 || t4.t !== o3) {
      t4 = { i: 0, S: i4, p: o3.s, n: void 0, t: o3, e: void 0, x: void 0, r: t4 };
      if (void 0 !== o3.s) o3.s.n = t4;
      o3.s = t4;
      i4.n = t4;
      if (32 & o3.f) i4.S(t4);
      return t4;
    } else if (-1 === t4.i) {
      t4.i = 0;
      if (void 0 !== t4.n) {
        t4.n.p = t4.p;
        if (void 0 !== t4.p) t4.p.n = t4.n;
        t4.p = o3.s;
        t4.n = void 0;
        o3.s.n = t4;
        o3.s = t4;
      }
      return t4;
    }
  }
}
function l3(i4, t4) {
  this.v = i4;
  this.i = 0;
  this.n = void 0;
  this.t = void 0;
  this.l = 0;
  this.W = null == t4 ? void 0 : t4.watched;
  this.Z = null == t4 ? void 0 : t4.unwatched;
  this.name = null == t4 ? void 0 : t4.name;
}
l3.prototype.brand = i3;
l3.prototype.h = function() {
  return true;
};
l3.prototype.S = function(i4) {
  var t4 = this, r4 = this.t;
  if (r4 !== i4 && void 0 === i4.e) {
    i4.x = r4;
    this.t = i4;
    if (void 0 !== r4) r4.e = i4;
    else f3(function() {
      var i5;
      null == (i5 = t4.W) || i5.call(t4);
    });
  }
};
l3.prototype.U = function(i4) {
  var t4 = this;
  if (void 0 !== this.t) {
    var r4 = i4.e, n3 = i4.x;
    if (void 0 !== r4) {
      r4.x = n3;
      i4.e = void 0;
    }
    if (void 0 !== n3) {
      n3.e = r4;
      i4.x = void 0;
    }
    if (i4 === this.t) {
      this.t = n3;
      if (void 0 === n3) f3(function() {
        var i5;
        null == (i5 = t4.Z) || i5.call(t4);
      });
    }
  }
};
l3.prototype.subscribe = function(i4) {
  var t4 = this;
  return x2(function() {
    var r4 = t4.value;
    f3(function() {
      return i4(r4);
    });
  }, { name: "sub" });
};
l3.prototype.valueOf = function() {
  return this.value;
};
l3.prototype.toString = function() {
  return this.value + "";
};
l3.prototype.toJSON = function() {
  return this.value;
};
l3.prototype.peek = function() {
  var i4 = this;
  return f3(function() {
    return i4.value;
  });
};
Object.defineProperty(l3.prototype, "value", { get: function() {
  var i4 = d3(this);
  if (void 0 !== i4) i4.i = this.i;
  return this.v;
}, set: function(i4) {
  if (i4 !== this.v) {
    if (s3 > 100) throw new Error("Cycle detected");
    !(function(i5) {
      if (0 !== v3 && 0 === s3) {
        if (i5.l !== u3) {
          i5.l = u3;
          c3 = { S: i5, v: i5.v, i: i5.i, o: c3 };
        }
      }
    })(this);
    this.v = i4;
    this.i++;
    a3++;
    v3++;
    try {
      for (var r4 = this.t; void 0 !== r4; r4 = r4.x) r4.t.N();
    } finally {
      t3();
    }
  }
} });
function y3(i4, t4) {
  return new l3(i4, t4);
}
function w3(i4) {
  for (var t4 = i4.s; void 0 !== t4; t4 = t4.n) if (t4.S.i !== t4.i || !t4.S.h() || t4.S.i !== t4.i) return true;
  return false;
}
function b2(i4) {
  for (var t4 = i4.s; void 0 !== t4; t4 = t4.n) {
    var r4 = t4.S.n;
    if (void 0 !== r4) t4.r = r4;
    t4.S.n = t4;
    t4.i = -1;
    if (void 0 === t4.n) {
      i4.s = t4;
      break;
    }
  }
}
function _3(i4) {
  var t4 = i4.s, r4 = void 0;
  while (void 0 !== t4) {
    var n3 = t4.p;
    if (-1 === t4.i) {
      t4.S.U(t4);
      if (void 0 !== n3) n3.n = t4.n;
      if (void 0 !== t4.n) t4.n.p = n3;
    } else r4 = t4;
    t4.S.n = t4.r;
    if (void 0 !== t4.r) t4.r = void 0;
    t4 = n3;
  }
  i4.s = r4;
}
function j3(i4, t4) {
  l3.call(this, void 0, t4);
  this.x = i4;
  this.s = void 0;
  this.g = a3 - 1;
  this.f = 4;
}
j3.prototype = new l3();
j3.prototype.h = function() {
  this.f &= -3;
  if (1 & this.f) return false;
  if (32 == (36 & this.f)) return true;
  this.f &= -5;
  if (this.g === a3) return true;
  this.g = a3;
  this.f |= 1;
  if (this.i > 0 && !w3(this)) {
    this.f &= -2;
    return true;
  }
  var i4 = o3;
  try {
    b2(this);
    o3 = this;
    var t4 = this.x();
    if (16 & this.f || this.v !== t4 || 0 === this.i) {
      this.v = t4;
      this.f &= -17;
      this.i++;
    }
  } catch (i5) {
    this.v = i5;
    this.f |= 16;
    this.i++;
  }
  o3 = i4;
  _3(this);
  this.f &= -2;
  return true;
};
j3.prototype.S = function(i4) {
  if (void 0 === this.t) {
    this.f |= 36;
    for (var t4 = this.s; void 0 !== t4; t4 = t4.n) t4.S.S(t4);
  }
  l3.prototype.S.call(this, i4);
};
j3.prototype.U = function(i4) {
  if (void 0 !== this.t) {
    l3.prototype.U.call(this, i4);
    if (void 0 === this.t) {
      this.f &= -33;
      for (var t4 = this.s; void 0 !== t4; t4 = t4.n) t4.S.U(t4);
    }
  }
};
j3.prototype.N = function() {
  if (!(2 & this.f)) {
    this.f |= 6;
    for (var i4 = this.t; void 0 !== i4; i4 = i4.x) i4.t.N();
  }
};
Object.defineProperty(j3.prototype, "value", { get: function() {
  if (1 & this.f) throw new Error("Cycle detected");
  var i4 = d3(this);
  this.h();
  if (void 0 !== i4) i4.i = this.i;
  if (16 & this.f) throw this.v;
  return this.v;
} });
function O2(i4, t4) {
  return new j3(i4, t4);
}
function p3(i4) {
  var r4 = i4.j;
  i4.j = void 0;
  if ("function" == typeof r4) {
    v3++;
    var n3 = o3;
    o3 = void 0;
    try {
      r4();
    } catch (t4) {
      i4.f &= -2;
      i4.f |= 8;
      g2(i4);
      throw t4;
    } finally {
      o3 = n3;
      t3();
    }
  }
}
function g2(i4) {
  for (var t4 = i4.s; void 0 !== t4; t4 = t4.n) t4.S.U(t4);
  i4.x = void 0;
  i4.s = void 0;
  p3(i4);
}
function S2(i4) {
  if (o3 !== this) throw new Error("Out-of-order effect");
  _3(this);
  o3 = i4;
  this.f &= -2;
  try {
    if (8 & this.f) g2(this);
  } finally {
    t3();
  }
}
function m3(i4, t4) {
  this.x = i4;
  this.j = void 0;
  this.s = void 0;
  this.u = void 0;
  this.f = 32;
  this.name = null == t4 ? void 0 : t4.name;
  if (n2) n2.push(this);
}
m3.prototype.c = function() {
  var i4 = this.S();
  try {
    if (8 & this.f) return;
    if (void 0 === this.x) return;
    var t4 = this.x();
    if ("function" == typeof t4) this.j = t4;
  } finally {
    i4();
  }
};
m3.prototype.S = function() {
  if (1 & this.f) throw new Error("Cycle detected");
  this.f |= 1;
  this.f &= -9;
  p3(this);
  b2(this);
  v3++;
  var i4 = o3;
  o3 = this;
  return S2.bind(this, i4);
};
m3.prototype.N = function() {
  if (!(2 & this.f)) {
    this.f |= 2;
    this.u = h3;
    h3 = this;
  }
};
m3.prototype.d = function() {
  this.f |= 8;
  if (!(1 & this.f)) g2(this);
};
m3.prototype.dispose = function() {
  this.d();
};
function x2(i4, t4) {
  var r4 = new m3(i4, t4);
  try {
    r4.c();
  } catch (i5) {
    r4.d();
    throw i5;
  }
  var n3 = r4.d.bind(r4);
  n3[Symbol.dispose] = n3;
  return n3;
}

// node_modules/@preact/signals/dist/signals.module.js
var h4;
var l4;
var p4;
var m4 = "undefined" != typeof window && !!window.__PREACT_SIGNALS_DEVTOOLS__;
var _4 = [];
x2(function() {
  h4 = this.N;
})();
function g3(i4, t4) {
  l[i4] = t4.bind(null, l[i4] || function() {
  });
}
function y4(i4) {
  if (p4) p4();
  p4 = i4 && i4.S();
}
function b3(i4) {
  var n3 = this, r4 = i4.data, o4 = useSignal(r4);
  o4.value = r4;
  var e4 = T2(function() {
    var i5 = n3, r5 = n3.__v;
    while (r5 = r5.__) if (r5.__c) {
      r5.__c.__$f |= 4;
      break;
    }
    var f5 = O2(function() {
      var i6 = o4.value.value;
      return 0 === i6 ? 0 : true === i6 ? "" : i6 || "";
    }), e5 = O2(function() {
      return !Array.isArray(f5.value) && !t(f5.value);
    }), u6 = x2(function() {
      this.N = M;
      if (e5.value) {
        var n4 = f5.value;
        if (i5.__v && i5.__v.__e && 3 === i5.__v.__e.nodeType) i5.__v.__e.data = n4;
      }
    }), c5 = n3.__$u.d;
    n3.__$u.d = function() {
      u6();
      c5.call(this);
    };
    return [e5, f5];
  }, []), u5 = e4[0], c4 = e4[1];
  return u5.value ? c4.peek() : c4.value;
}
b3.displayName = "ReactiveTextNode";
Object.defineProperties(l3.prototype, { constructor: { configurable: true, value: void 0 }, type: { configurable: true, value: b3 }, props: { configurable: true, get: function() {
  return { data: this };
} }, __b: { configurable: true, value: 1 } });
g3("__b", function(i4, n3) {
  if (m4 && "function" == typeof n3.type) window.__PREACT_SIGNALS_DEVTOOLS__.exitComponent();
  if ("string" == typeof n3.type) {
    var t4, r4 = n3.props;
    for (var f5 in r4) if ("children" !== f5) {
      var o4 = r4[f5];
      if (o4 instanceof l3) {
        if (!t4) n3.__np = t4 = {};
        t4[f5] = o4;
        r4[f5] = o4.peek();
      }
    }
  }
  i4(n3);
});
g3("__r", function(i4, n3) {
  if (m4 && "function" == typeof n3.type) window.__PREACT_SIGNALS_DEVTOOLS__.enterComponent(n3);
  if (n3.type !== S) {
    y4();
    var t4, f5 = n3.__c;
    if (f5) {
      f5.__$f &= -2;
      if (void 0 === (t4 = f5.__$u)) f5.__$u = t4 = (function(i5) {
        var n4;
        x2(function() {
          n4 = this;
        });
        n4.c = function() {
          f5.__$f |= 1;
          f5.setState({});
        };
        return n4;
      })();
    }
    l4 = f5;
    y4(t4);
  }
  i4(n3);
});
g3("__e", function(i4, n3, t4, r4) {
  if (m4) window.__PREACT_SIGNALS_DEVTOOLS__.exitComponent();
  y4();
  l4 = void 0;
  i4(n3, t4, r4);
});
g3("diffed", function(i4, n3) {
  if (m4 && "function" == typeof n3.type) window.__PREACT_SIGNALS_DEVTOOLS__.exitComponent();
  y4();
  l4 = void 0;
  var t4;
  if ("string" == typeof n3.type && (t4 = n3.__e)) {
    var r4 = n3.__np, f5 = n3.props;
    if (r4) {
      var o4 = t4.U;
      if (o4) for (var e4 in o4) {
        var u5 = o4[e4];
        if (void 0 !== u5 && !(e4 in r4)) {
          u5.d();
          o4[e4] = void 0;
        }
      }
      else {
        o4 = {};
        t4.U = o4;
      }
      for (var a4 in r4) {
        var c4 = o4[a4], v4 = r4[a4];
        if (void 0 === c4) {
          c4 = k3(t4, a4, v4, f5);
          o4[a4] = c4;
        } else c4.o(v4, f5);
      }
    }
  }
  i4(n3);
});
function k3(i4, n3, t4, r4) {
  var f5 = n3 in i4 && void 0 === i4.ownerSVGElement, o4 = y3(t4);
  return { o: function(i5, n4) {
    o4.value = i5;
    r4 = n4;
  }, d: x2(function() {
    this.N = M;
    var t5 = o4.value.value;
    if (r4[n3] !== t5) {
      r4[n3] = t5;
      if (f5) i4[n3] = t5;
      else if (null != t5 && (false !== t5 || "-" === n3[4])) i4.setAttribute(n3, t5);
      else i4.removeAttribute(n3);
    }
  }) };
}
g3("unmount", function(i4, n3) {
  if ("string" == typeof n3.type) {
    var t4 = n3.__e;
    if (t4) {
      var r4 = t4.U;
      if (r4) {
        t4.U = void 0;
        for (var f5 in r4) {
          var o4 = r4[f5];
          if (o4) o4.d();
        }
      }
    }
  } else {
    var e4 = n3.__c;
    if (e4) {
      var u5 = e4.__$u;
      if (u5) {
        e4.__$u = void 0;
        u5.d();
      }
    }
  }
  i4(n3);
});
g3("__h", function(i4, n3, t4, r4) {
  if (r4 < 3 || 9 === r4) n3.__$f |= 2;
  i4(n3, t4, r4);
});
C.prototype.shouldComponentUpdate = function(i4, n3) {
  var t4 = this.__$u, r4 = t4 && void 0 !== t4.s;
  for (var f5 in n3) return true;
  if (this.__f || "boolean" == typeof this.u && true === this.u) {
    var o4 = 2 & this.__$f;
    if (!(r4 || o4 || 4 & this.__$f)) return true;
    if (1 & this.__$f) return true;
  } else {
    if (!(r4 || 4 & this.__$f)) return true;
    if (3 & this.__$f) return true;
  }
  for (var e4 in i4) if ("__source" !== e4 && i4[e4] !== this.props[e4]) return true;
  for (var u5 in this.props) if (!(u5 in i4)) return true;
  return false;
};
function useSignal(i4, n3) {
  return d2(function() {
    return y3(i4, n3);
  })[0];
}
var A3 = function(i4) {
  queueMicrotask(function() {
    queueMicrotask(i4);
  });
};
function F() {
  r3(function() {
    var i4;
    while (i4 = _4.shift()) h4.call(i4);
  });
}
function M() {
  if (1 === _4.push(this)) (l.requestAnimationFrame || A3)(F);
}

// src/api.ts
var API = "/api/v1";
var online = y3(true);
var needsLogin = y3(false);
var me = y3(null);
var ApiError = class extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
};
function address(path, values = {}, query = {}) {
  const filled = path.replace(/\{(\w+)\}/g, (_5, name) => encodeURIComponent(String(values[name] ?? "")));
  const words2 = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== void 0 && value !== null && value !== "") words2.set(name, String(value));
  }
  const text = words2.toString();
  return API + filled + (text ? `?${text}` : "");
}
async function call(key, options = {}) {
  const [method, path] = key.split(" ");
  const request = { method, credentials: "same-origin" };
  if (options.signal) request.signal = options.signal;
  const headers = {};
  if (options.body !== void 0) {
    request.body = JSON.stringify(options.body);
    headers["content-type"] = "application/json";
  }
  if (method !== "GET" && !/token|session|validate|what-if/.test(path)) {
    headers["idempotency-key"] = crypto.getRandomValues(new Uint32Array(4)).join("-");
  }
  request.headers = headers;
  let response;
  try {
    response = await fetch(address(path, options.path, options.query), request);
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) online.value = false;
    throw error;
  }
  online.value = true;
  if (!response.ok) throw await asError(response);
  return await response.json();
}
async function asError(response) {
  let form = {};
  try {
    form = await response.json();
  } catch {
  }
  if (response.status === 401) needsLogin.value = true;
  return new ApiError(response.status, form.code ?? "", form.error ?? `the server answered ${response.status}`);
}
function useLive(ask2, everyMs, inputs) {
  const [state, setState] = d2({ data: null, error: null });
  const again = A2(() => void 0);
  h2(() => {
    const stop = new AbortController();
    let timer = 0;
    let busy = false;
    const run = async () => {
      clearTimeout(timer);
      if (busy) return;
      busy = true;
      try {
        const data = await ask2(stop.signal);
        if (!stop.signal.aborted) setState({ data, error: null });
      } catch (error) {
        if (!stop.signal.aborted && error instanceof ApiError) setState((old) => ({ data: old.data, error }));
      }
      busy = false;
      if (!stop.signal.aborted && everyMs > 0) timer = window.setTimeout(run, document.hidden ? everyMs * 10 : everyMs);
    };
    const wake = () => {
      if (!document.hidden && everyMs > 0) void run();
    };
    again.current = () => void run();
    document.addEventListener("visibilitychange", wake);
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, inputs);
  return { ...state, refresh: () => again.current() };
}

// src/format.ts
var clock = new Intl.DateTimeFormat(void 0, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
var day = new Intl.DateTimeFormat(void 0, { weekday: "short", day: "numeric", month: "short" });
function duration(seconds) {
  const s4 = Math.max(0, Math.round(seconds));
  if (s4 < 60) return `${s4} s`;
  if (s4 < 3600) return `${Math.floor(s4 / 60)} min${s4 % 60 && s4 < 180 ? ` ${s4 % 60} s` : ""}`;
  if (s4 < 86400) return `${Math.floor(s4 / 3600)} h${Math.floor(s4 % 3600 / 60) ? ` ${Math.floor(s4 % 3600 / 60)} min` : ""}`;
  return `${Math.floor(s4 / 86400)} d${Math.floor(s4 % 86400 / 3600) ? ` ${Math.floor(s4 % 86400 / 3600)} h` : ""}`;
}
function time(text) {
  if (!text) return "–";
  const at = new Date(text);
  return at.toDateString() === (/* @__PURE__ */ new Date()).toDateString() ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}
function since(text, until2 = Date.now()) {
  return text ? duration((until2 - Date.parse(text)) / 1e3) : "–";
}
function until(text) {
  if (!text) return "–";
  const seconds = (Date.parse(text) - Date.now()) / 1e3;
  return seconds <= 5 ? "now" : `in ${duration(seconds)}`;
}
function memory(mb) {
  if (mb === null || mb === void 0) return "–";
  return mb < 1024 ? `${mb} MB` : `${trim(mb / 1024, mb < 10240 ? 1 : 0)} GB`;
}
function trim(value, digits = 2) {
  return String(Number(value.toFixed(digits)));
}
function count(value) {
  return value.toLocaleString("en-GB").replaceAll(",", " ");
}
function plural(value, one, many = `${one}s`) {
  return `${count(value)} ${value === 1 ? one : many}`;
}
function hue(name) {
  let hash = 2166136261;
  for (let i4 = 0; i4 < name.length; i4 += 1) hash = Math.imul(hash ^ name.charCodeAt(i4), 16777619);
  return (hash >>> 0) * 137.508 % 360;
}

// node_modules/preact/jsx-runtime/dist/jsxRuntime.module.js
var f4 = 0;
function u4(e4, t4, n3, o4, i4, u5) {
  t4 || (t4 = {});
  var a4, c4, p5 = t4;
  if ("ref" in p5) for (c4 in p5 = {}, t4) "ref" == c4 ? a4 = t4[c4] : p5[c4] = t4[c4];
  var l5 = { type: e4, props: p5, key: n3, ref: a4, __k: null, __: null, __b: 0, __e: null, __c: null, constructor: void 0, __v: --f4, __i: -1, __u: 0, __source: i4, __self: u5 };
  if ("function" == typeof e4 && (a4 = e4.defaultProps)) for (c4 in a4) void 0 === p5[c4] && (p5[c4] = a4[c4]);
  return l.vnode && l.vnode(l5), l5;
}

// src/components.tsx
function State({ state }) {
  return /* @__PURE__ */ u4("span", { class: `state state-${state.replace(/[^a-z-]/g, "")}`, children: state });
}
function Who({ name }) {
  const dot = A2(null);
  _2(() => dot.current?.style.setProperty("--hue", String(hue(name))), [name]);
  return /* @__PURE__ */ u4("span", { class: "who", children: [
    /* @__PURE__ */ u4("span", { class: "dot", ref: dot, "aria-hidden": "true" }),
    name
  ] });
}
function JobLink({ id, children }) {
  return /* @__PURE__ */ u4("a", { href: `#/jobs/${encodeURIComponent(id)}`, children: children ?? id });
}
function Meter({ label, value, text, tone }) {
  const bar = A2(null);
  _2(() => bar.current?.style.setProperty("--part", String(Math.min(1, Math.max(0, value ?? 0)))), [value]);
  return /* @__PURE__ */ u4("div", { class: "meter", children: [
    /* @__PURE__ */ u4("span", { class: "meter-label", children: label }),
    /* @__PURE__ */ u4("span", { class: `meter-bar ${tone ?? ""} ${value === null ? "meter-none" : ""}`, ref: bar, "aria-hidden": "true" }),
    /* @__PURE__ */ u4("span", { class: "meter-text", children: text })
  ] });
}
function Empty({ title, children }) {
  return /* @__PURE__ */ u4("div", { class: "empty", children: [
    /* @__PURE__ */ u4("h2", { children: title }),
    children
  ] });
}
function Problem({ error }) {
  return error && error.status !== 401 ? /* @__PURE__ */ u4("p", { class: "note note-bad", role: "alert", children: error.message }) : null;
}
function Facts({ of }) {
  return /* @__PURE__ */ u4("dl", { class: "facts", children: of.filter(([, value]) => value !== null && value !== void 0 && value !== "" && !(Array.isArray(value) && value.length === 0)).map(([name, value]) => /* @__PURE__ */ u4("div", { children: [
    /* @__PURE__ */ u4("dt", { children: name }),
    /* @__PURE__ */ u4("dd", { children: value })
  ] }, name)) });
}
function Code({ text }) {
  const copy = () => {
    void navigator.clipboard?.writeText(text).then(() => notify("Copied."));
  };
  return /* @__PURE__ */ u4("div", { class: "code", children: [
    /* @__PURE__ */ u4("pre", { tabIndex: 0, children: text }),
    /* @__PURE__ */ u4("button", { type: "button", class: "small", onClick: copy, children: "Copy" })
  ] });
}
function Table({ columns, rows, id, label }) {
  return /* @__PURE__ */ u4("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label, children: /* @__PURE__ */ u4("table", { children: [
    /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { children: columns.map((column) => /* @__PURE__ */ u4("th", { scope: "col", class: `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`, children: column.name }, column.name)) }) }),
    /* @__PURE__ */ u4("tbody", { children: rows.map((row) => /* @__PURE__ */ u4("tr", { children: columns.map((column) => /* @__PURE__ */ u4("td", { class: `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`, children: column.of(row) }, column.name)) }, id(row))) })
  ] }) });
}
var ROW_PX = 34;
var SPARE_ROWS = 12;
function WindowedTable(props) {
  const { columns, total, offset, rows, id, label, sort, onSort, onWindow, rowClass, current } = props;
  const box = A2(null);
  const [view, setView] = d2({ first: 0, count: 60 });
  h2(() => {
    const element = box.current;
    if (!element) return void 0;
    let frame = 0;
    const measure = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        const first2 = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - SPARE_ROWS);
        const rowsInView = Math.ceil(element.clientHeight / ROW_PX) + 2 * SPARE_ROWS;
        setView((old) => old.first === first2 && old.count === rowsInView ? old : { first: first2, count: rowsInView });
        onWindow?.(first2, rowsInView);
      });
    };
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const size = new ResizeObserver(measure);
    size.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", measure);
      size.disconnect();
    };
  }, [onWindow]);
  const first = Math.min(Math.max(view.first, offset), Math.max(offset, offset + rows.length));
  const last = Math.min(view.first + view.count, offset + rows.length);
  const shown = rows.slice(first - offset, Math.max(first, last) - offset);
  return /* @__PURE__ */ u4("div", { class: "scroll windowed", ref: box, tabIndex: 0, role: "region", "aria-label": label, children: /* @__PURE__ */ u4("table", { "aria-rowcount": total + 1, children: [
    /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { "aria-rowindex": 1, children: columns.map((column) => /* @__PURE__ */ u4(Heading, { column, sort, onSort }, column.key ?? column.name)) }) }),
    /* @__PURE__ */ u4("tbody", { children: [
      /* @__PURE__ */ u4(Spacer, { rows: first, columns: columns.length }),
      shown.map((row, place2) => /* @__PURE__ */ u4(
        "tr",
        {
          "aria-rowindex": first + place2 + 2,
          class: `${rowClass?.(row, first + place2) ?? ""} ${current === id(row) ? "current" : ""}`,
          children: columns.map((column) => /* @__PURE__ */ u4("td", { class: `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`, children: column.of(row) }, column.key ?? column.name))
        },
        id(row)
      )),
      /* @__PURE__ */ u4(Spacer, { rows: Math.max(0, total - first - shown.length), columns: columns.length })
    ] })
  ] }) });
}
function Heading({ column, sort, onSort }) {
  const isUp = sort === column.sort;
  const isDown = sort === `-${column.sort}`;
  const side = `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`;
  if (!column.sort || !onSort) {
    return /* @__PURE__ */ u4("th", { scope: "col", class: side, children: column.name || /* @__PURE__ */ u4("span", { class: "hidden", children: "select" }) });
  }
  const next = isUp ? `-${column.sort}` : column.sort;
  return /* @__PURE__ */ u4("th", { scope: "col", class: side, "aria-sort": isUp ? "ascending" : isDown ? "descending" : "none", children: /* @__PURE__ */ u4("button", { type: "button", class: "heading", onClick: () => onSort(next), children: [
    column.name,
    /* @__PURE__ */ u4("span", { "aria-hidden": "true", children: isUp ? " ↑" : isDown ? " ↓" : "" })
  ] }) });
}
function Spacer({ rows, columns }) {
  const cell = A2(null);
  _2(() => {
    if (cell.current) cell.current.style.height = `${rows * ROW_PX}px`;
  }, [rows]);
  return rows > 0 ? /* @__PURE__ */ u4("tr", { class: "spacer", "aria-hidden": "true", children: /* @__PURE__ */ u4("td", { ref: cell, colSpan: columns }) }) : null;
}
var toasts = y3([]);
var nextToast = 1;
function notify(text, options = {}) {
  const toast = { number: nextToast, text, bad: options.bad ?? false };
  if (options.undo) toast.undo = options.undo;
  nextToast += 1;
  toasts.value = [...toasts.value.slice(-3), toast];
  window.setTimeout(() => dismiss(toast.number), options.undo || options.bad ? 12e3 : 5e3);
}
function dismiss(number) {
  toasts.value = toasts.value.filter((one) => one.number !== number);
}
function Toasts() {
  return /* @__PURE__ */ u4("div", { class: "toasts", role: "status", "aria-live": "polite", children: toasts.value.map((toast) => /* @__PURE__ */ u4("div", { class: `toast ${toast.bad ? "toast-bad" : ""}`, children: [
    /* @__PURE__ */ u4("span", { children: toast.text }),
    toast.undo ? /* @__PURE__ */ u4(
      "button",
      {
        type: "button",
        class: "small",
        onClick: () => {
          dismiss(toast.number);
          toast.undo?.();
        },
        children: "Undo"
      }
    ) : null,
    /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Dismiss", onClick: () => dismiss(toast.number), children: "×" })
  ] }, toast.number)) });
}
async function attempt(change, done, undo) {
  try {
    await change();
    notify(done, undo ? { undo } : {});
    return true;
  } catch (error) {
    notify(error instanceof Error ? error.message : "the server could not be reached", { bad: true });
    return false;
  }
}
var question = y3(null);
function ask(title, text, yes, options = {}) {
  return new Promise((answer) => {
    const asked = { title, text, yes, danger: options.danger ?? false, answer };
    if (options.input) asked.input = options.input;
    question.value = asked;
  });
}
function QuestionDialog() {
  const asked = question.value;
  const dialog = A2(null);
  const field = A2(null);
  h2(() => {
    if (asked && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [asked]);
  if (!asked) return null;
  const close = (value) => {
    question.value = null;
    asked.answer(value);
  };
  return /* @__PURE__ */ u4("dialog", { ref: dialog, "aria-labelledby": "question-title", onCancel: () => close(null), children: /* @__PURE__ */ u4(
    "form",
    {
      method: "dialog",
      onSubmit: (event) => {
        event.preventDefault();
        close(field.current?.value ?? "");
      },
      children: [
        /* @__PURE__ */ u4("h2", { id: "question-title", children: asked.title }),
        /* @__PURE__ */ u4("p", { children: asked.text }),
        asked.input ? /* @__PURE__ */ u4("label", { children: [
          asked.input.label,
          /* @__PURE__ */ u4("input", { ref: field, defaultValue: asked.input.value })
        ] }) : null,
        /* @__PURE__ */ u4("div", { class: "buttons", children: [
          /* @__PURE__ */ u4("button", { type: "button", onClick: () => close(null), children: "Back" }),
          /* @__PURE__ */ u4("button", { type: "submit", class: asked.danger ? "danger" : "primary", children: asked.yes })
        ] })
      ]
    }
  ) });
}

// src/readings.ts
var POLL_MS = 2e3;
function gpuId(gpu) {
  return `${gpu.node}:${gpu.index}`;
}
function useGpus() {
  const list = useLive((signal) => call("GET /gpus", { signal }), POLL_MS, []);
  return { gpus: list.data?.gpus ?? null, error: list.error, refresh: list.refresh };
}

// src/cluster.tsx
var FEW_GPUS = 16;
var COLOURS = ["user", "utilisation", "memory", "temperature"];
var BAD_STATES = /* @__PURE__ */ new Set(["unhealthy", "quarantined", "hot", "leaking"]);
function Cluster() {
  const { gpus, error, refresh } = useGpus();
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 5e3, []);
  const status = useLive((signal) => call("GET /cluster/status", { signal }), 3e3, []);
  const [chosen, setChosen] = d2("");
  const [colour, setColour] = d2("user");
  const [words2, setWords] = d2("");
  const shown = T2(() => gpus?.filter((gpu2) => matches(gpu2, words2)) ?? [], [gpus, words2]);
  if (!gpus || !nodes.data) return error ? /* @__PURE__ */ u4(Problem, { error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  const gpu = gpus.find((one) => gpuId(one) === chosen);
  const few = gpus.length <= FEW_GPUS;
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "Cluster" }),
    /* @__PURE__ */ u4(Problem, { error }),
    /* @__PURE__ */ u4(Summary, { gpus, running: status.data?.running_jobs ?? 0, waiting: status.data?.pending_jobs ?? 0 }),
    gpus.length === 0 ? /* @__PURE__ */ u4(Empty, { title: "No GPUs yet", children: /* @__PURE__ */ u4("p", { children: [
      "A node appears here as soon as its agent has joined: ",
      /* @__PURE__ */ u4("code", { children: "tgpu agent" }),
      ". To try without GPUs: ",
      /* @__PURE__ */ u4("code", { children: "tgpu up --simulate 8xA100-80GB" }),
      "."
    ] }) }) : /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("div", { class: "toolbar", children: [
        /* @__PURE__ */ u4("label", { class: "inline", children: [
          "Search",
          /* @__PURE__ */ u4("input", { type: "search", value: words2, placeholder: "node, user, job, model, state", onInput: (event) => setWords(event.currentTarget.value) })
        ] }),
        few ? null : /* @__PURE__ */ u4("label", { class: "inline", children: [
          "Colour",
          /* @__PURE__ */ u4("select", { value: colour, onChange: (event) => setColour(event.currentTarget.value), children: COLOURS.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one }, one)) })
        ] }),
        /* @__PURE__ */ u4("span", { class: "muted", children: words2 ? `${count(shown.length)} of ${plural(gpus.length, "GPU")}` : null })
      ] }),
      /* @__PURE__ */ u4("div", { class: gpu ? "split" : "", children: [
        /* @__PURE__ */ u4("div", { children: [
          few ? /* @__PURE__ */ u4(Tiles, { gpus: shown, nodes: nodes.data.nodes, chosen, choose: setChosen }) : /* @__PURE__ */ u4(GpuMap, { gpus: shown, nodes: nodes.data.nodes, colour, chosen, choose: setChosen }),
          /* @__PURE__ */ u4("h2", { children: "GPUs" }),
          /* @__PURE__ */ u4(GpuTable, { gpus: shown, chosen, choose: setChosen })
        ] }),
        gpu ? /* @__PURE__ */ u4(GpuDetail, { gpu, close: () => setChosen(""), refresh }) : null
      ] })
    ] })
  ] });
}
function matches(gpu, words2) {
  const text = `${gpuId(gpu)} ${gpu.model} ${gpu.state} ${gpu.users.join(" ")} ${gpu.jobs.join(" ")}`.toLowerCase();
  return words2.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}
function Summary({ gpus, running, waiting }) {
  const used = gpus.reduce((sum, gpu) => sum + gpu.allocated_share, 0);
  const free = gpus.filter((gpu) => gpu.state === "free" && !gpu.why).length;
  const bad = gpus.filter((gpu) => gpu.why).length;
  const busy = gpus.filter((gpu) => gpu.utilisation_percent !== null);
  const load = busy.reduce((sum, gpu) => sum + (gpu.utilisation_percent ?? 0), 0) / Math.max(1, busy.length);
  const power = gpus.reduce((sum, gpu) => sum + (gpu.power_watts ?? 0), 0);
  const figures = [
    [`${trim(used, 1)}`, `of ${count(gpus.length)} GPUs allocated`, ""],
    [count(free), "free", ""],
    [count(running), "jobs running", "#/jobs"],
    [count(waiting), "jobs waiting", "#/jobs"]
  ];
  if (busy.length) figures.push([`${Math.round(load)} %`, "mean utilisation", ""]);
  if (power) figures.push([power < 1e4 ? `${Math.round(power)} W` : `${trim(power / 1e3, 1)} kW`, "power", ""]);
  if (bad) figures.push([count(bad), bad === 1 ? "GPU takes no work" : "GPUs take no work", ""]);
  return /* @__PURE__ */ u4("ul", { class: "figures", children: figures.map(([figure, label, link]) => /* @__PURE__ */ u4("li", { children: [
    /* @__PURE__ */ u4("strong", { children: figure }),
    link ? /* @__PURE__ */ u4("a", { href: link, children: label }) : /* @__PURE__ */ u4("span", { children: label })
  ] }, label)) });
}
function degrees(gpu) {
  return gpu.temperature_c ? `${gpu.temperature_c} °C` : "–";
}
function watts(gpu) {
  return gpu.power_watts ? `${Math.round(gpu.power_watts)} W` : "–";
}
function Tiles({ gpus, nodes, chosen, choose }) {
  return /* @__PURE__ */ u4(S, { children: nodes.filter((node) => gpus.some((gpu) => gpu.node === node.id)).map((node) => /* @__PURE__ */ u4("section", { "aria-label": `node ${node.id}`, children: [
    /* @__PURE__ */ u4("h2", { class: "node-title", children: [
      node.id,
      " ",
      /* @__PURE__ */ u4(State, { state: node.state }),
      /* @__PURE__ */ u4("span", { class: "muted", children: [node.rack && `rack ${node.rack}`, ...node.gpu_models, node.problem].filter(Boolean).join(" · ") })
    ] }),
    /* @__PURE__ */ u4("div", { class: "tiles", children: gpus.filter((gpu) => gpu.node === node.id).map((gpu) => /* @__PURE__ */ u4(Tile, { gpu, chosen: chosen === gpuId(gpu), choose }, gpu.index)) })
  ] }, node.id)) });
}
function Tile({ gpu, chosen, choose }) {
  return /* @__PURE__ */ u4("article", { class: `tile tile-${gpu.state} ${chosen ? "chosen" : ""}`, children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("button", { type: "button", class: "link", onClick: () => choose(gpuId(gpu)), "aria-label": `GPU ${gpu.index} of ${gpu.node}: details`, children: [
        "GPU ",
        gpu.index
      ] }),
      /* @__PURE__ */ u4(State, { state: gpu.state })
    ] }),
    /* @__PURE__ */ u4("p", { class: "tile-who", children: [
      gpu.users.length ? gpu.users.map((user) => /* @__PURE__ */ u4(Who, { name: user }, user)) : /* @__PURE__ */ u4("span", { class: "muted", children: gpu.why || "free" }),
      gpu.jobs.slice(0, 3).map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)),
      gpu.jobs.length > 3 ? /* @__PURE__ */ u4("span", { class: "muted", children: [
        "and ",
        gpu.jobs.length - 3,
        " more"
      ] }) : null
    ] }),
    /* @__PURE__ */ u4(Meter, { label: "share", value: gpu.allocated_share, text: `${Math.round(gpu.allocated_share * 100)} %` }),
    /* @__PURE__ */ u4(
      Meter,
      {
        label: "memory",
        value: (gpu.memory_used_mb ?? gpu.allocated_memory_mb) / Math.max(1, gpu.memory_mb),
        text: `${memory(gpu.memory_used_mb ?? gpu.allocated_memory_mb)} of ${memory(gpu.memory_mb)}`
      }
    ),
    gpu.utilisation_percent === null ? null : /* @__PURE__ */ u4(Meter, { label: "busy", value: gpu.utilisation_percent / 100, text: `${gpu.utilisation_percent} %`, tone: "good" }),
    gpu.temperature_c || gpu.power_watts ? /* @__PURE__ */ u4("p", { class: "tile-foot muted", children: [degrees(gpu), watts(gpu)].join(" · ") }) : null
  ] });
}
function layOut(gpus, nodes, width) {
  const size = gpus.length > 400 ? 13 : 20;
  const gap = size > 16 ? 4 : 3;
  const labelWidth = size > 16 ? 110 : 76;
  const byNode = /* @__PURE__ */ new Map();
  for (const gpu of gpus) byNode.set(gpu.node, [...byNode.get(gpu.node) ?? [], gpu]);
  const most = Math.max(1, ...[...byNode.values()].map((list) => list.length));
  const blockWidth = labelWidth + most * (size + gap) + 18;
  const perRow = Math.max(1, Math.floor(width / blockWidth));
  const rowHeight = size + gap + 5;
  const layout = { cells: [], labels: [], lines: [], size, height: 0 };
  const racks = [...new Set(nodes.map((node) => node.rack))].sort();
  let y5 = 4;
  for (const rack of racks) {
    const inRack = nodes.filter((node) => node.rack === rack && byNode.has(node.id));
    if (!inRack.length) continue;
    if (racks.length > 1 || rack) {
      layout.labels.push({ x: 0, y: y5 + 12, text: rack ? `rack ${rack}` : "no rack", strong: true });
      y5 += 20;
    }
    inRack.forEach((node, place2) => {
      const left = place2 % perRow * blockWidth;
      const top = y5 + Math.floor(place2 / perRow) * rowHeight;
      const short = node.id.length > labelWidth / 7.5 ? `${node.id.slice(0, Math.floor(labelWidth / 7.5) - 1)}…` : node.id;
      layout.labels.push({ x: left, y: top + size - 3, text: node.state === "online" ? short : `! ${short}`, strong: false });
      const list = byNode.get(node.id) ?? [];
      list.forEach((gpu, index) => layout.cells.push({ x: left + labelWidth + index * (size + gap), y: top, gpu }));
      for (const island of node.islands) {
        const places = list.flatMap((gpu, index) => island.includes(gpu.index) ? [index] : []);
        const first = places[0];
        const last = places.at(-1);
        if (first === void 0 || last === void 0 || places.length < 2) continue;
        layout.lines.push({ x: left + labelWidth + first * (size + gap), y: top + size + 2, width: (last - first) * (size + gap) + size });
      }
    });
    y5 += Math.ceil(inRack.length / perRow) * rowHeight + 6;
  }
  layout.height = y5;
  return layout;
}
function GpuMap({ gpus, nodes, colour, chosen, choose }) {
  const canvas = A2(null);
  const [width, setWidth] = d2(0);
  const [hovered, setHovered] = d2("");
  const shape = gpus.map(gpuId).join(" ");
  const layout = T2(() => layOut(gpus, nodes, width), [shape, nodes, width]);
  h2(() => {
    const element = canvas.current?.parentElement;
    if (!element) return void 0;
    const size = new ResizeObserver(() => setWidth(element.clientWidth));
    size.observe(element);
    return () => size.disconnect();
  }, []);
  const byId = T2(() => new Map(gpus.map((gpu2) => [gpuId(gpu2), gpu2])), [gpus]);
  h2(() => {
    if (canvas.current && width) draw(canvas.current, layout, byId, colour, chosen, width);
  }, [layout, byId, colour, chosen, width]);
  const at = (event) => {
    const cell = layout.cells.find((one) => event.offsetX >= one.x && event.offsetX <= one.x + layout.size && event.offsetY >= one.y && event.offsetY <= one.y + layout.size);
    return cell ? gpuId(cell.gpu) : "";
  };
  const gpu = byId.get(hovered);
  return /* @__PURE__ */ u4("div", { class: "map card", children: [
    /* @__PURE__ */ u4(
      "canvas",
      {
        ref: canvas,
        role: "img",
        "aria-label": `Map of ${plural(gpus.length, "GPU")} on ${plural(nodes.length, "node")}; the table below has the same data`,
        onMouseMove: (event) => setHovered(at(event)),
        onMouseLeave: () => setHovered(""),
        onClick: (event) => choose(at(event))
      }
    ),
    /* @__PURE__ */ u4("p", { class: "map-line", "aria-hidden": "true", children: gpu ? `${gpuId(gpu)} · ${gpu.model} · ${gpu.state}${gpu.users.length ? ` · ${gpu.users.join(", ")} · ${gpu.jobs.join(", ")}` : ""}${gpu.utilisation_percent === null ? "" : ` · ${gpu.utilisation_percent} % busy`} · ${memory(gpu.memory_used_mb ?? gpu.allocated_memory_mb)} of ${memory(gpu.memory_mb)}${gpu.why ? ` · ${gpu.why}` : ""}` : "Point at a GPU to read it; click to open it. An underline joins GPUs of one NVLink island, × marks GPUs that take no work." })
  ] });
}
function draw(canvas, layout, byId, colour, chosen, width) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${layout.height}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const dark = css("--dark") === "1";
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, layout.height);
  pen.textBaseline = "alphabetic";
  for (const label of layout.labels) {
    pen.fillStyle = label.strong ? css("--text") : css("--muted");
    pen.font = `${label.strong ? "600 " : ""}${layout.size > 16 ? 12 : 11}px ${css("--font")}`;
    pen.fillText(label.text, label.x, label.y);
  }
  pen.fillStyle = css("--muted");
  for (const line2 of layout.lines) pen.fillRect(line2.x, line2.y, line2.width, 1);
  const size = layout.size;
  for (const cell of layout.cells) {
    const gpu = byId.get(gpuId(cell.gpu)) ?? cell.gpu;
    const { x: x3, y: y5 } = cell;
    pen.fillStyle = css("--cell");
    pen.fillRect(x3, y5, size, size);
    const [part, paint] = fill(gpu, colour, dark);
    if (part > 0) {
      const height = Math.max(2, Math.round(size * Math.min(1, part)));
      pen.fillStyle = paint;
      pen.fillRect(x3, y5 + size - height, size, height);
    }
    if (gpu.why || BAD_STATES.has(gpu.state)) {
      pen.strokeStyle = css(BAD_STATES.has(gpu.state) ? "--bad" : "--muted");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x3 + 3, y5 + 3);
      pen.lineTo(x3 + size - 3, y5 + size - 3);
      pen.moveTo(x3 + size - 3, y5 + 3);
      pen.lineTo(x3 + 3, y5 + size - 3);
      pen.stroke();
    }
    if (gpuId(gpu) === chosen) {
      pen.strokeStyle = css("--text");
      pen.lineWidth = 2;
      pen.strokeRect(x3 - 1, y5 - 1, size + 2, size + 2);
    }
  }
}
function fill(gpu, colour, dark) {
  if (colour === "user") {
    const user = gpu.users[0];
    return user ? [gpu.allocated_share, `hsl(${hue(user)} 62% ${dark ? 58 : 48}%)`] : [gpu.state === "foreign" ? 1 : 0, "#c77700"];
  }
  const part = colour === "utilisation" ? (gpu.utilisation_percent ?? 0) / 100 : colour === "memory" ? (gpu.memory_used_mb ?? gpu.allocated_memory_mb) / Math.max(1, gpu.memory_mb) : Math.max(0, ((gpu.temperature_c ?? 20) - 20) / 75);
  return [part > 0 ? 1 : 0, `hsl(${colour === "temperature" ? 220 - 220 * Math.min(1, part) : 215} 70% ${dark ? 22 + 45 * part : 88 - 48 * part}%)`];
}
function GpuTable({ gpus, chosen, choose }) {
  const columns = [
    {
      name: "GPU",
      of: (gpu) => /* @__PURE__ */ u4("button", { type: "button", class: "link", onClick: () => choose(gpuId(gpu)), children: gpuId(gpu) })
    },
    { name: "Model", of: (gpu) => gpu.model },
    { name: "State", of: (gpu) => /* @__PURE__ */ u4(State, { state: gpu.state }) },
    { name: "User", of: (gpu) => gpu.users.map((user) => /* @__PURE__ */ u4(Who, { name: user }, user)) },
    { name: "Jobs", of: (gpu) => gpu.jobs.slice(0, 4).map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)) },
    { name: "Share", right: true, of: (gpu) => `${Math.round(gpu.allocated_share * 100)} %` },
    { name: "Memory", right: true, of: (gpu) => `${memory(gpu.memory_used_mb ?? gpu.allocated_memory_mb)} of ${memory(gpu.memory_mb)}` },
    { name: "Busy", right: true, of: (gpu) => gpu.utilisation_percent === null ? "–" : `${gpu.utilisation_percent} %` },
    { name: "Temp.", right: true, of: degrees },
    { name: "Power", right: true, of: watts },
    { name: "Why it takes no work", grow: true, of: (gpu) => gpu.why }
  ];
  return /* @__PURE__ */ u4(WindowedTable, { columns, total: gpus.length, offset: 0, rows: gpus, id: gpuId, label: "GPUs", sort: "", current: chosen });
}
function GpuDetail({ gpu, close, refresh }) {
  const change = async (verb) => {
    const id = gpuId(gpu);
    const text = verb === "pause" ? "It gets no new jobs. Those that run on it continue." : "It gets new jobs again.";
    if (await ask(`${verb === "pause" ? "Pause" : "Resume"} ${id}?`, text, verb === "pause" ? "Pause" : "Resume") === null) return;
    await attempt(() => call(`POST /gpus/{node}/{index}/${verb}`, { path: { node: gpu.node, index: gpu.index } }), `${id} is ${verb}d.`);
    refresh();
  };
  return /* @__PURE__ */ u4("aside", { class: "card detail", "aria-label": `GPU ${gpuId(gpu)}`, children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("h2", { children: gpuId(gpu) }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Close", onClick: close, children: "×" })
    ] }),
    /* @__PURE__ */ u4(State, { state: gpu.state }),
    " ",
    gpu.why ? /* @__PURE__ */ u4("p", { class: "note", children: gpu.why }) : null,
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Model", gpu.model],
          ["UUID", /* @__PURE__ */ u4("span", { class: "mono", children: gpu.uuid })],
          ["MIG", gpu.mig.join(", ")],
          ["Users", gpu.users.map((user) => /* @__PURE__ */ u4(Who, { name: user }, user))],
          ["Jobs", gpu.jobs.length ? gpu.jobs.map((job) => /* @__PURE__ */ u4(JobLink, { id: job }, job)) : "none"],
          ["Allocated", `${Math.round(gpu.allocated_share * 100)} %, ${memory(gpu.allocated_memory_mb)}`],
          ["Memory in use", gpu.memory_used_mb === null ? "" : `${memory(gpu.memory_used_mb)} of ${memory(gpu.memory_mb)}`],
          ["Utilisation", gpu.utilisation_percent === null ? "" : `${gpu.utilisation_percent} %`],
          ["Mean and peak", gpu.utilisation_mean_percent === null ? "" : `${gpu.utilisation_mean_percent} %, ${gpu.utilisation_peak_percent ?? 0} %`],
          ["Temperature", degrees(gpu)],
          ["Power", watts(gpu)]
        ]
      }
    ),
    gpu.processes.length ? /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("h3", { children: "Processes" }),
      /* @__PURE__ */ u4(
        Table,
        {
          label: "Processes",
          rows: gpu.processes,
          id: (process) => String(process.pid),
          columns: [
            { name: "PID", of: (process) => process.pid },
            { name: "User", of: (process) => process.user },
            { name: "Memory", right: true, of: (process) => memory(process.memory_mb) },
            { name: "Job", of: (process) => process.job_id ? /* @__PURE__ */ u4(JobLink, { id: process.job_id }) : "none: foreign" },
            { name: "Command", of: (process) => /* @__PURE__ */ u4("span", { class: "mono", children: process.command }) }
          ]
        }
      )
    ] }) : null,
    me.value?.role === "admin" ? /* @__PURE__ */ u4("div", { class: "buttons", children: gpu.paused || gpu.state === "quarantined" ? /* @__PURE__ */ u4("button", { type: "button", onClick: () => void change("resume"), children: "Resume" }) : /* @__PURE__ */ u4("button", { type: "button", onClick: () => void change("pause"), children: "Pause" }) }) : null
  ] });
}

// src/actions.ts
var WORDS = {
  cancel: { title: "Cancel", text: "Running jobs are stopped; waiting ones leave the queue.", yes: "Cancel", done: "cancelled" },
  hold: { title: "Hold", text: "Held jobs keep their place but do not start until they are released.", yes: "Hold", done: "held" },
  release: { title: "Release", text: "They may start again.", yes: "Release", done: "released" },
  retry: { title: "Retry", text: "They go back into the queue.", yes: "Retry", done: "queued again" },
  priority: { title: "Change the priority of", text: "Higher starts earlier: low 250, normal 750, high 1500, urgent 2500; 0 to 10000.", yes: "Change", done: "changed" }
};
var UNDO = { hold: "release", release: "hold", cancel: "retry" };
var AT_ONCE = 8;
function send(action, id, value) {
  const path = { job_id: id };
  switch (action) {
    case "cancel":
      return call("DELETE /jobs/{job_id}", { path });
    case "priority": {
      const number = Number(value);
      return call("POST /jobs/{job_id}/priority", { path, body: { priority: Number.isNaN(number) ? value : number } });
    }
    case "retry":
      return call("POST /jobs/{job_id}/retry", { path });
    case "hold":
      return call("POST /jobs/{job_id}/hold", { path });
    case "release":
      return call("POST /jobs/{job_id}/release", { path });
  }
}
async function act(action, ids, after, current = 750) {
  const words2 = WORDS[action];
  const what = ids.length === 1 ? ids[0] ?? "" : plural(ids.length, "job");
  const input = action === "priority" ? { input: { label: "Priority", value: String(current) } } : {};
  const answer = await ask(`${words2.title} ${what}?`, words2.text, words2.yes, { danger: action === "cancel", ...input });
  if (answer === null) return;
  await apply(action, ids, answer);
  after();
}
async function apply(action, ids, value) {
  const done = [];
  const problems = [];
  const left = [...ids];
  const work = async () => {
    for (let id = left.shift(); id !== void 0; id = left.shift()) {
      try {
        await send(action, id, value);
        done.push(id);
      } catch (error) {
        problems.push(error instanceof Error ? error.message : id);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (done.length) {
    const back = UNDO[action];
    const what = done.length === 1 ? done[0] ?? "" : plural(done.length, "job");
    notify(`${what} ${WORDS[action].done}.`, back ? { undo: () => void apply(back, done, "") } : {});
  }
  if (problems.length) notify(`${plural(problems.length, "job")} not changed: ${problems[0]}`, { bad: true });
}

// src/jobfile.ts
var MOST_COMBINATIONS = 1e4;
var HIDDEN = "***";
var PRIORITIES = /* @__PURE__ */ new Map([
  [250, "low"],
  [750, "normal"],
  [1500, "high"],
  [2500, "urgent"]
]);
function words(line2) {
  const found = [];
  let word = "";
  let isOpen = false;
  let quote = "";
  for (let i4 = 0; i4 < line2.length; i4 += 1) {
    const letter = line2.charAt(i4);
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && /["\\$`]/.test(line2.charAt(i4 + 1))) word += line2.charAt(i4 += 1);
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      isOpen = true;
    } else if (letter === "\\" && i4 + 1 < line2.length) {
      word += line2.charAt(i4 += 1);
      isOpen = true;
    } else if (/\s/.test(letter)) {
      if (isOpen) found.push(word);
      word = "";
      isOpen = false;
    } else {
      word += letter;
      isOpen = true;
    }
  }
  if (quote) throw new Error(`a quote ${quote} is not closed`);
  if (isOpen) found.push(word);
  return found;
}
function quoted(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}
function line(command) {
  return command.map(quoted).join(" ");
}
function requestOf(job) {
  const body = { command: job.command, gpu_count: job.gpu_count };
  const left = [];
  if (job.name) body.name = job.name;
  if (job.tenant_id !== "default") body.tenant_id = job.tenant_id;
  if (job.priority !== 750) body.priority = job.priority;
  if (job.gpu_models.length) body.gpu_models = job.gpu_models;
  if (job.gpu_memory_mb) body.gpu_memory_mb = job.gpu_memory_mb;
  if (job.cpu_cores) body.cpu_cores = job.cpu_cores;
  if (job.memory_mb) body.memory_mb = job.memory_mb;
  if (job.max_runtime_minutes) body.max_runtime_minutes = job.max_runtime_minutes;
  if (job.image) body.image = job.image;
  if (job.working_directory) body.working_directory = job.working_directory;
  if (job.runner && job.runner !== "process") body.runner = job.runner;
  if (job.pool === "online") body.pool = job.pool;
  if (!job.preemptible) body.preemptible = false;
  if (job.interactive) body.interactive = true;
  if (job.retries) body.retries = job.retries;
  if (job.output) body.output = job.output;
  if (job.array) body.array = `${job.array.tasks}${job.array.max_running ? `%${job.array.max_running}` : ""}`;
  if (job.members > 1) Object.assign(body, { members: job.members, gang_scheduling: true, gpu_count: job.gpu_count / job.members });
  const shown = Object.entries(job.environment).filter(([, value]) => value !== HIDDEN);
  if (shown.length) body.environment = Object.fromEntries(shown);
  if (shown.length < Object.keys(job.environment).length) left.push("hidden values of environment variables");
  if (job.dependencies.length) left.push("its dependencies");
  if (job.snapshot) left.push("its snapshot of the code");
  return { body, left };
}
function clock2(seconds) {
  const whole = Math.round(seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${two(Math.floor(whole / 3600))}:${two(Math.floor(whole % 3600 / 60))}:${two(whole % 60)}`;
}
function tgpuLine(body, params = {}) {
  const options = [];
  const add = (...parts) => options.push(...parts.map(quoted));
  for (const [name, value] of Object.entries(body)) {
    if (value === null || value === void 0 || name === "command" || name === "gang_scheduling") continue;
    if (name === "gpu_count") add("-G", String(value));
    else if (name === "gpu_models") add("--gpu-model", value.join(","));
    else if (name === "gpu_model") add("--gpu-model", String(value));
    else if (name === "gpu_memory_mb") add("--gpu-memory", `${value}M`);
    else if (name === "max_runtime_minutes") add("-t", clock2(value * 60));
    else if (name === "max_runtime_seconds") add("-t", clock2(value));
    else if (name === "estimate_seconds") add("--estimate", clock2(value));
    else if (name === "cpu_cores") add("-c", String(value));
    else if (name === "memory_mb") add("-m", `${value}M`);
    else if (name === "name") add("-J", String(value));
    else if (name === "priority" && (typeof value === "string" || value > 10)) add("-p", PRIORITIES.get(value) ?? String(value));
    else if (name === "tenant_id") add("-T", String(value));
    else if (name === "image") add("--image", String(value));
    else if (name === "runner") add("--runner", String(value));
    else if (name === "working_directory") add("-D", String(value));
    else if (name === "output") add("-o", String(value));
    else if (name === "array" && typeof value === "string") add("-a", value);
    else if (name === "retries") add("--retries", String(value));
    else if (name === "members" && typeof value === "number") add("-N", String(value));
    else if (name === "min_members") add("--min-members", String(value));
    else if (name === "pool") add("--pool", String(value));
    else if (name === "topology") add("--topology", String(value));
    else if (name === "sweep") add("--sweep", String(value));
    else if (name === "environment") for (const [key, text] of Object.entries(value)) add("-e", `${key}=${text}`);
    else if (name === "hold" || name === "exclusive" || name === "contiguous" || name === "interactive") {
      if (value) add(`--${name}`);
    } else if (name === "preemptible") {
      if (!value) add("--no-preempt");
    } else return null;
  }
  for (const [name, values] of Object.entries(params)) add("--param", `${name}=${values.join(",")}`);
  return ["tgpu submit", ...options, "--", line(body.command ?? [])].join(" ");
}
function jobFile(body) {
  return JSON.stringify(body, null, 2);
}
function pythonText(body, params = {}) {
  const { command, ...fields } = body;
  const arguments_ = Object.entries(fields).map(([name, value]) => `${name}=${pythonValue(value)}`);
  if (!Object.keys(params).length) {
    const given = [pythonValue(command ?? []), ...arguments_].map((text) => `    ${text},`).join("\n");
    return `from gpu_scheduler import Client

with Client() as client:
    job = client.submit(
${given.replaceAll(/^/gm, "    ")}
    )
    print(job.id)
`;
  }
  const loops = Object.entries(params).map(([key, values]) => `    ${pythonValue(key)}: ${pythonValue(values)},`);
  const filled = `[word.format(**values) for word in ${pythonValue(command ?? [])}]`;
  const rest = arguments_.filter((text) => !text.startsWith("sweep="));
  return [
    "from itertools import product",
    "from gpu_scheduler import Client",
    "",
    "params = {",
    ...loops,
    "}",
    "rows = [dict(zip(params, row)) for row in product(*params.values())]",
    "with Client() as client:",
    "    jobs = client.submit_many(",
    `        dict(command=${filled}, params=values, sweep=${pythonValue(fields.sweep || "my-sweep")}${rest.length ? `, ${rest.join(", ")}` : ""})`,
    "        for values in rows",
    "    )",
    "    print(jobs)",
    ""
  ].join("\n");
}
function pythonValue(value) {
  if (value === null || value === void 0) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${pythonValue(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}
function readParams(text) {
  const params = {};
  for (const row of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const match = /^([A-Za-z_]\w*)=(.+)$/.exec(row);
    const name = match?.[1];
    if (!name || !match[2]) throw new Error(`"${row}" is no parameter; write a name and values, as lr=0.1,0.01`);
    if (Object.keys(params).some((other) => other.toUpperCase() === name.toUpperCase())) throw new Error(`parameter "${name}" is there twice`);
    params[name] = match[2].split(",");
  }
  const combinations2 = Object.values(params).reduce((product, values) => product * values.length, 1);
  if (combinations2 > MOST_COMBINATIONS) throw new Error(`${combinations2} combinations; at most ${MOST_COMBINATIONS} are sent at once`);
  return params;
}
function combinations(params) {
  let rows = [{}];
  for (const [name, values] of Object.entries(params)) rows = rows.flatMap((row) => values.map((value) => ({ ...row, [name]: value })));
  return rows;
}
function filledIn(body, values, sweep) {
  const fill2 = (text) => text.replace(/\{([A-Za-z_]\w*)\}/g, (all, name2) => values[name2] ?? all);
  const label = Object.entries(values).map(([name2, value]) => `${name2}=${value}`).join(",");
  const name = body.name ? fill2(body.name) : "";
  const made = { ...body, name: (name && name !== body.name ? name : `${body.name ?? ""} ${label}`.trim()).slice(0, 256), params: values, sweep };
  if (body.command) made.command = body.command.map(fill2);
  if (body.output) made.output = fill2(body.output);
  if (body.working_directory) made.working_directory = fill2(body.working_directory);
  const variables = Object.entries(body.environment ?? {}).map(([key, text]) => [key, fill2(text)]);
  const own = Object.entries(values).map(([key, text]) => [`TGPU_PARAM_${key.toUpperCase()}`, text]);
  made.environment = Object.fromEntries([...variables, ...own, ["TGPU_SWEEP", sweep]]);
  return made;
}
function sweepName(given) {
  const stem = given.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z]+|[-.]+$/g, "");
  return `${stem || "sweep"}-${[...crypto.getRandomValues(new Uint8Array(3))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`.slice(-64);
}

// src/ansi.ts
var AnsiReader = class {
  colour = "";
  bold = false;
  // Reads one line; colours go on into the next.
  line(raw) {
    const kept = raw.replace(/\r+$/, "");
    const line2 = kept.slice(kept.lastIndexOf("\r") + 1);
    const pieces = [];
    let at = 0;
    const sequences = /\x1b(?:\[([0-9;:?]*)[ -/]*([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\|$)|[@-Z\\^_]|[ -/]+[0-~]|$)/g;
    for (let found = sequences.exec(line2); found; found = sequences.exec(line2)) {
      this.add(pieces, line2.slice(at, found.index));
      at = found.index + found[0].length;
      if (found[2] === "m") this.paint(found[1] ?? "");
      if (found[0] === "") break;
    }
    this.add(pieces, line2.slice(at));
    return pieces;
  }
  add(pieces, text) {
    const visible = text.replace(/[\x00-\x08\x0b-\x1f\x7f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, "");
    if (visible) pieces.push({ text: visible, style: `${this.colour}${this.bold ? " ansi-bold" : ""}`.trim() });
  }
  paint(codes) {
    const numbers = codes.split(/[;:]/).map(Number);
    for (let i4 = 0; i4 < numbers.length; i4 += 1) {
      const code = numbers[i4] ?? 0;
      if (code === 0) {
        this.colour = "";
        this.bold = false;
      } else if (code === 1) this.bold = true;
      else if (code === 22) this.bold = false;
      else if (code >= 30 && code <= 37) this.colour = `ansi-${code - 30}`;
      else if (code >= 90 && code <= 97) this.colour = `ansi-${code - 90}`;
      else if (code === 39) this.colour = "";
      else if (code === 38 && numbers[i4 + 1] === 5) {
        const index = numbers[i4 + 2] ?? 0;
        this.colour = index < 16 ? `ansi-${index % 8}` : `ansi-${nearest(index)}`;
        i4 += 2;
      } else if (code === 38) i4 += 4;
      else if (code === 48) i4 += numbers[i4 + 1] === 5 ? 2 : 4;
    }
  }
};
function nearest(index) {
  if (index >= 232) return index < 244 ? 0 : 7;
  const cube = index - 16;
  const on = (part) => part >= 3 ? 1 : 0;
  return on(Math.floor(cube / 36)) + 2 * on(Math.floor(cube / 6) % 6) + 4 * on(cube % 6);
}

// src/log.tsx
var TAIL_BYTES = 512 * 1024;
var MOST_LINES = 2e4;
var MOST_LINE_CHARS = 2e4;
var LINE_PX = 18;
var RETRY_MS = 3e3;
var PAINT_MS = 150;
function useLog(id, query) {
  const [log, setLog] = d2({ lines: [], dropped: false, problem: "", ended: false });
  h2(() => {
    const stop = new AbortController();
    void follow(id, query, stop.signal, setLog).catch(() => void 0);
    return () => stop.abort();
  }, [id, JSON.stringify(query)]);
  return log;
}
async function follow(id, query, signal, show) {
  while (!signal.aborted) {
    let lines = [];
    let dropped = false;
    let paintTimer = 0;
    const paint = (problem = "", ended = false) => {
      clearTimeout(paintTimer);
      paintTimer = 0;
      if (!signal.aborted) show({ lines: [...lines], dropped, problem, ended });
    };
    try {
      const response = await fetch(address("/jobs/{job_id}/logs", { job_id: id }, { ...query, offset: -TAIL_BYTES, follow: 1 }), { signal });
      if (!response.ok || !response.body) {
        paint((await asError(response)).message);
        if (response.status < 500 && response.status !== 429) return;
      } else {
        const ansi = new AnsiReader();
        let rest = "";
        let bytes = 0;
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          bytes += part.value.length;
          dropped ||= bytes >= TAIL_BYTES;
          const split = (rest + part.value).split("\n");
          rest = (split.pop() ?? "").slice(-MOST_LINE_CHARS);
          for (const line2 of split) lines.push(ansi.line(line2.slice(0, MOST_LINE_CHARS)));
          if (lines.length > MOST_LINES) {
            lines = lines.slice(-MOST_LINES);
            dropped = true;
          }
          if (!paintTimer) paintTimer = window.setTimeout(paint, PAINT_MS);
        }
        if (rest) lines.push(ansi.line(rest));
        paint("", true);
        return;
      }
    } catch (error) {
      if (signal.aborted) return;
      paint(error instanceof Error ? `The log was interrupted: ${error.message}` : "The log was interrupted.");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
function LogView({ id, attempt: attempt2, member, task }) {
  const query = { attempt: attempt2, member, task };
  const log = useLog(id, query);
  const [words2, setWords] = d2("");
  const [follows, setFollows] = d2(true);
  const [top, setTop] = d2(0);
  const [height, setHeight] = d2(400);
  const box = A2(null);
  const space = A2(null);
  const body = A2(null);
  const needle = words2.toLowerCase();
  const lines = T2(
    () => needle ? log.lines.filter((line2) => line2.map((piece) => piece.text).join("").toLowerCase().includes(needle)) : log.lines,
    [log.lines, needle]
  );
  const first = Math.max(0, Math.floor(top / LINE_PX) - 10);
  const shown = lines.slice(first, first + Math.ceil(height / LINE_PX) + 20);
  h2(() => {
    const element = box.current;
    if (!element) return void 0;
    const size = new ResizeObserver(() => setHeight(element.clientHeight));
    size.observe(element);
    return () => size.disconnect();
  }, []);
  h2(() => {
    if (space.current) space.current.style.height = `${lines.length * LINE_PX}px`;
    if (body.current) body.current.style.transform = `translateY(${first * LINE_PX}px)`;
    if (follows && box.current) box.current.scrollTop = lines.length * LINE_PX;
  }, [lines, first, follows]);
  return /* @__PURE__ */ u4("section", { class: "card log", "aria-label": "Log", children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("h2", { children: "Log" }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Search",
        /* @__PURE__ */ u4("input", { type: "search", value: words2, onInput: (event) => setWords(event.currentTarget.value), placeholder: "lines that contain" })
      ] }),
      needle ? /* @__PURE__ */ u4("span", { class: "muted", children: `${count(lines.length)} of ${count(log.lines.length)} lines` }) : null,
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: follows, onChange: (event) => setFollows(event.currentTarget.checked) }),
        " Follow"
      ] }),
      /* @__PURE__ */ u4("a", { class: "button", href: address("/jobs/{job_id}/logs", { job_id: id }, query), download: `${id}.log`, children: "Download" })
    ] }),
    log.dropped ? /* @__PURE__ */ u4("p", { class: "note", children: "This is the end of a long log. The download has all of it." }) : null,
    log.problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: log.problem }) : null,
    /* @__PURE__ */ u4(
      "div",
      {
        class: "log-box",
        ref: box,
        tabIndex: 0,
        role: "log",
        "aria-live": "off",
        "aria-label": "Output of the job",
        onScroll: (event) => {
          const element = event.currentTarget;
          setTop(element.scrollTop);
          setFollows(element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX);
        },
        children: [
          /* @__PURE__ */ u4("div", { class: "log-space", ref: space, children: /* @__PURE__ */ u4("div", { class: "log-lines", ref: body, children: shown.map((line2, place2) => /* @__PURE__ */ u4("div", { class: "log-line", children: line2.map((piece, index) => /* @__PURE__ */ u4("span", { class: piece.style, children: piece.text }, index)) }, first + place2)) }) }),
          lines.length === 0 ? /* @__PURE__ */ u4("p", { class: "muted", children: needle ? "No line contains that." : log.ended ? "The job has written nothing." : "Nothing written yet." }) : null
        ]
      }
    )
  ] });
}

// src/job.tsx
var ENDED = /* @__PURE__ */ new Set(["completed", "failed", "cancelled"]);
function JobPage({ id }) {
  const path = { job_id: id };
  const found = useLive((signal) => call("GET /jobs/{job_id}", { path, signal }), 2e3, [id]);
  const job = found.data;
  const isOwn = job !== null && !job.redacted;
  const isOver = job !== null && ENDED.has(job.state);
  const why = useLive(async (signal) => isOwn && !isOver ? call("GET /jobs/{job_id}/explain", { path, signal }) : null, 3e3, [id, isOwn, isOver, job?.state]);
  const attempts = useLive(async (signal) => isOwn ? call("GET /jobs/{job_id}/attempts", { path, signal }) : null, isOver ? 0 : 4e3, [id, isOwn, job?.state, job?.attempt]);
  if (!job) return found.error ? /* @__PURE__ */ u4(Problem, { error: found.error }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" });
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { class: "crumbs", children: [
      /* @__PURE__ */ u4("a", { href: "#/jobs", children: "Queue" }),
      " / ",
      job.id
    ] }),
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: [
        job.name || job.id,
        " ",
        /* @__PURE__ */ u4(State, { state: job.hold && job.state === "pending" ? "held" : job.state })
      ] }),
      isOwn ? /* @__PURE__ */ u4(Actions, { job, refresh: found.refresh }) : null
    ] }),
    /* @__PURE__ */ u4(Problem, { error: found.error }),
    job.redacted ? /* @__PURE__ */ u4("p", { class: "note", children: [
      "This is a job of ",
      job.user,
      ": only its size, its place and its times are shown."
    ] }) : null,
    why.data && why.data.state !== "running" ? /* @__PURE__ */ u4(Why, { why: why.data }) : job.reason ? /* @__PURE__ */ u4("p", { class: "note", children: job.reason }) : null,
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Facts", children: [
      /* @__PURE__ */ u4(Facts, { of: factsOf(job) }),
      job.command.length ? /* @__PURE__ */ u4(Code, { text: line(job.command) }) : null
    ] }),
    job.array ? /* @__PURE__ */ u4(Tasks, { job }) : null,
    isOwn && job.attempt > 0 && !job.array ? /* @__PURE__ */ u4(JobLog, { job, attempts: attempts.data?.attempts ?? [] }) : null,
    attempts.data?.attempts.length ? /* @__PURE__ */ u4(Attempts, { attempts: attempts.data.attempts }) : null,
    isOwn ? /* @__PURE__ */ u4(Surroundings, { job }) : null
  ] });
}
function factsOf(job) {
  const limit = job.time_limit_minutes;
  const ran = job.started_at && job.state !== "pending" ? since(job.started_at, job.ended_at ? Date.parse(job.ended_at) : Date.now()) : "";
  return [
    ["Job", job.id],
    ["User", /* @__PURE__ */ u4(Who, { name: job.user })],
    ["Tenant", job.tenant_id],
    ["GPUs", `${trim(job.gpu_count)}${job.members > 1 ? ` in ${plural(job.members, "member")}` : ""}${job.gpu_models.length ? `, ${job.gpu_models.join(" or ")}` : ""}`],
    ["GPU memory", job.gpu_memory_mb ? memory(job.gpu_memory_mb) : ""],
    ["CPUs and memory", [job.cpu_cores ? plural(job.cpu_cores, "core") : "", job.memory_mb ? memory(job.memory_mb) : ""].filter(Boolean).join(", ")],
    ["Priority", job.redacted ? "" : `${job.priority}, ${job.pool}${job.preemptible ? ", preemptible" : ""}`],
    ["Submitted", time(job.submitted_at)],
    ["Started", job.started_at ? time(job.started_at) : ""],
    ["Ended", job.ended_at ? time(job.ended_at) : ""],
    ["Ran for", ran],
    ["Expected end", job.expected_end ? `${time(job.expected_end)} (${until(job.expected_end)})` : ""],
    ["Time limit", limit ? duration(limit * 60) : ""],
    ["Exit", exitText(job)],
    ["Attempts", job.attempt > 1 ? `${job.attempt}, ${plural(job.preemptions, "preemption")}` : ""],
    ["Where", job.allocation.map((place2) => /* @__PURE__ */ u4("span", { class: "mono", children: `${place2.node}[${place2.gpus.map((gpu) => gpu.share < 1 ? `${gpu.index} at ${Math.round(gpu.share * 100)} %` : gpu.index).join(",")}] ` }, `${place2.node} ${place2.member} ${place2.task}`))],
    ...measured(job.measured),
    ["Deadline", job.deadline ? time(job.deadline) : ""],
    ["Not before", job.begin_at ? time(job.begin_at) : ""],
    ["After", job.dependencies.length ? job.dependencies.map((one) => /* @__PURE__ */ u4("span", { children: [
      one.type,
      " ",
      /* @__PURE__ */ u4(JobLink, { id: one.job_id }),
      " "
    ] }, one.job_id)) : ""],
    ["Sweep", job.sweep],
    ["Image", job.image],
    ["Attach", job.attach.length ? job.attach.join(" ") : ""]
  ];
}
function measured(measure) {
  if (!measure) return [];
  return [
    ["GPU utilisation", measure.utilisation_percent === null ? "" : `${measure.utilisation_percent} %, peak ${measure.peak_utilisation_percent ?? 0} %`],
    ["Peak GPU memory", memory(measure.peak_memory_mb)],
    ["Energy", measure.energy_wh === null ? "" : `${trim(measure.energy_wh, 1)} Wh`],
    ["Warning", measure.warning]
  ];
}
function exitText(job) {
  if (job.signal) return `signal ${job.signal}`;
  return job.exit_code === null ? "" : `code ${job.exit_code}`;
}
function Actions({ job, refresh }) {
  const possible = ENDED.has(job.state) ? job.state === "completed" ? [] : ["retry"] : job.state === "pending" ? [job.hold ? "release" : "hold", "priority", "cancel"] : ["cancel"];
  return /* @__PURE__ */ u4("div", { class: "buttons", children: [
    possible.map((action) => /* @__PURE__ */ u4("button", { type: "button", class: action === "cancel" ? "danger" : "", onClick: () => void act(action, [job.id], refresh, job.priority), children: action }, action)),
    /* @__PURE__ */ u4("a", { class: "button", href: `#/submit/${encodeURIComponent(job.id)}`, children: "Submit again" }),
    job.state === "pending" ? /* @__PURE__ */ u4("a", { class: "button", href: `#/plan/${encodeURIComponent(job.id)}`, children: "Who is before it" }) : null
  ] });
}
function Why({ why }) {
  return /* @__PURE__ */ u4("section", { class: "card why", "aria-label": "Why it waits", children: [
    /* @__PURE__ */ u4("h2", { children: "Why it waits" }),
    /* @__PURE__ */ u4("p", { children: why.reason }),
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Place in the queue", why.position],
          ["Expected start", why.expected_start ? `${time(why.expected_start)} (${until(why.expected_start)})` : why.start_unknown ? `unknown: ${why.start_unknown}` : ""],
          ["Expected end", why.expected_end ? time(why.expected_end) : why.end_unknown ? `unknown: ${why.end_unknown}` : ""],
          ["Based on", why.basis]
        ]
      }
    )
  ] });
}
function JobLog({ job, attempts }) {
  const [attempt2, setAttempt] = d2(0);
  const [member, setMember] = d2(0);
  h2(() => setAttempt(0), [job.attempt]);
  return /* @__PURE__ */ u4(S, { children: [
    attempts.length > 1 || job.members > 1 ? /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      attempts.length > 1 ? /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Attempt",
        /* @__PURE__ */ u4("select", { value: attempt2, onChange: (event) => setAttempt(Number(event.currentTarget.value)), children: [
          /* @__PURE__ */ u4("option", { value: 0, children: "last" }),
          attempts.map((one) => /* @__PURE__ */ u4("option", { value: one.attempt, children: one.attempt }, one.attempt))
        ] })
      ] }) : null,
      job.members > 1 ? /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Member",
        /* @__PURE__ */ u4("input", { type: "number", min: 0, max: job.members - 1, value: member, onInput: (event) => setMember(Number(event.currentTarget.value) || 0) })
      ] }) : null
    ] }) : null,
    /* @__PURE__ */ k(LogView, { id: job.id, ...attempt2 ? { attempt: attempt2 } : {}, ...member ? { member } : {}, key: `${job.attempt} ${attempt2} ${member}` })
  ] });
}
function Attempts({ attempts }) {
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Attempts", children: [
    /* @__PURE__ */ u4("h2", { children: "Attempts" }),
    /* @__PURE__ */ u4(
      Table,
      {
        label: "Attempts",
        rows: attempts,
        id: (one) => one.id,
        columns: [
          { name: "Attempt", of: (one) => one.task === null ? one.attempt : `${one.task}.${one.attempt}` },
          { name: "State", of: (one) => /* @__PURE__ */ u4(State, { state: one.state }) },
          { name: "Started", of: (one) => time(one.started_at) },
          { name: "Ran for", right: true, of: (one) => since(one.started_at, one.ended_at ? Date.parse(one.ended_at) : Date.now()) },
          { name: "Exit", of: exitText },
          { name: "Where", of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: one.allocation.map((place2) => `${place2.node}[${place2.gpus.map((gpu) => gpu.index).join(",")}]`).join(" ") }) },
          { name: "Busy", right: true, of: (one) => one.measured?.utilisation_percent == null ? "–" : `${one.measured.utilisation_percent} %` },
          { name: "Detail", grow: true, of: (one) => one.detail }
        ]
      }
    )
  ] });
}
function Tasks({ job }) {
  const path = { job_id: job.id };
  const page = useLive((signal) => call("GET /jobs/{job_id}/tasks", { path, signal }), 3e3, [job.id]);
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Tasks", children: [
    /* @__PURE__ */ u4("h2", { children: plural(job.array?.count ?? 0, "task") }),
    /* @__PURE__ */ u4(Facts, { of: Object.entries(job.array?.states ?? {}).map(([state, tasks]) => [state, tasks]) }),
    page.data?.tasks.length ? /* @__PURE__ */ u4(
      Table,
      {
        label: "Tasks that have started",
        rows: page.data.tasks,
        id: (task) => task.id,
        columns: [
          { name: "Task", of: (task) => /* @__PURE__ */ u4(JobLink, { id: task.id }) },
          { name: "State", of: (task) => /* @__PURE__ */ u4(State, { state: task.state }) },
          { name: "Started", of: (task) => time(task.started_at) },
          { name: "Ran for", right: true, of: (task) => since(task.started_at, task.ended_at ? Date.parse(task.ended_at) : Date.now()) },
          { name: "Exit", grow: true, of: exitText }
        ]
      }
    ) : null
  ] });
}
function Surroundings({ job }) {
  const variables = Object.entries(job.environment);
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Surroundings", children: [
    /* @__PURE__ */ u4("h2", { children: "Surroundings" }),
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Directory", /* @__PURE__ */ u4("span", { class: "mono", children: job.working_directory })],
          ["Output", job.output],
          ["Runner", job.runner],
          ["Retries", job.retries || ""],
          ["Notify", job.notify.join(", ")],
          ["Snapshot", job.snapshot ? /* @__PURE__ */ u4("span", { class: "mono", children: `${job.snapshot.source} ${job.snapshot.commit.slice(0, 12)}${job.snapshot.dirty ? " with changes" : ""}` }) : ""],
          ...Object.entries(job.params).map(([name, value]) => [`Parameter ${name}`, value])
        ]
      }
    ),
    variables.length ? /* @__PURE__ */ u4("details", { children: [
      /* @__PURE__ */ u4("summary", { children: plural(variables.length, "environment variable") }),
      /* @__PURE__ */ u4(Facts, { of: variables.map(([name, value]) => [name, /* @__PURE__ */ u4("span", { class: "mono", children: value })]) })
    ] }) : null
  ] });
}

// src/login.tsx
function Login() {
  return /* @__PURE__ */ u4("section", { class: "card narrow", children: [
    /* @__PURE__ */ u4("h1", { children: "Who are you?" }),
    /* @__PURE__ */ u4("p", { children: "The server knows callers on its own machine. From another machine, forward a port through ssh; then you are logged in as your own user:" }),
    /* @__PURE__ */ u4("pre", { tabIndex: 0, children: `ssh -L ${location.port || "8080"}:127.0.0.1:${location.port || "8080"} ${location.hostname}` })
  ] });
}

// src/plan.tsx
var POLL_MS2 = 5e3;
var LABEL_PX = 116;
var NARROW_LABEL_PX = 64;
var ROW_PX2 = 20;
var HEAD_PX = 22;
var NODE_GAP_PX = 10;
var HOURS = [1, 3, 6, 12, 24, 72, 168, 720];
var PAST = [0, 1, 6, 24, 168];
function runId(run) {
  return `${run.kind} ${run.job_id} ${run.task ?? ""} ${run.start ?? ""} ${run.places.map((place2) => `${place2.node}${place2.gpu_ids.join("")}`).join(" ")}`;
}
function Plan({ job }) {
  const [ahead, setAhead] = d2(job ? 72 : 12);
  const [back, setBack] = d2(job ? 0 : 1);
  const [pages, setPages] = d2([]);
  const after = pages.at(-1) ?? "";
  const query = job ? { job, hours_ahead: ahead, hours_back: back } : { after, hours_ahead: ahead, hours_back: back };
  const plan = useLive((signal) => call("GET /plan", { query, signal }), POLL_MS2, [job, after, ahead, back]);
  const [chosen, setChosen] = d2("");
  const found = plan.data;
  const run = found?.runs.find((one) => runId(one) === chosen) ?? null;
  const [isFitted, setFitted] = d2(!job);
  const focus = job && found ? found.runs.find((one) => one.job_id === job && one.kind !== "past") ?? null : null;
  h2(() => {
    if (isFitted || !found) return;
    const needed = focus?.start ? (Date.parse(focus.end && !focus.end_unknown ? focus.end : focus.start) - Date.now()) / 36e5 : HOURS[HOURS.length - 1];
    const hours = HOURS.find((one) => one > (needed ?? 0) * 1.15) ?? 720;
    if (focus || hours === ahead) setFitted(true);
    setAhead(hours);
  }, [found, focus, isFitted]);
  return /* @__PURE__ */ u4(S, { children: [
    job ? /* @__PURE__ */ u4("p", { class: "crumbs", children: [
      /* @__PURE__ */ u4("a", { href: "#/plan", children: "Plan" }),
      " / ",
      /* @__PURE__ */ u4(JobLink, { id: job })
    ] }) : null,
    /* @__PURE__ */ u4("div", { class: "title-row", children: [
      /* @__PURE__ */ u4("h1", { children: job ? `Before ${job}` : "Plan" }),
      /* @__PURE__ */ u4("div", { class: "toolbar", children: [
        /* @__PURE__ */ u4(Choice, { label: "Past", value: back, of: PAST, set: setBack, none: "none" }),
        /* @__PURE__ */ u4(Choice, { label: "Ahead", value: ahead, of: HOURS, set: setAhead })
      ] })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: plan.error }),
    found ? /* @__PURE__ */ u4(S, { children: [
      job ? null : /* @__PURE__ */ u4(Summary2, { plan: found }),
      found.cut.map((text) => /* @__PURE__ */ u4("p", { class: "note", children: text }, text)),
      job ? /* @__PURE__ */ u4(Before, { plan: found, run: focus }) : null,
      found.nodes.length ? /* @__PURE__ */ u4(S, { children: [
        /* @__PURE__ */ u4(Legend, {}),
        /* @__PURE__ */ u4("div", { class: run ? "split" : "", children: [
          /* @__PURE__ */ u4(Gantt, { plan: found, chosen, choose: setChosen, focus }),
          run ? /* @__PURE__ */ u4(RunDetail, { run, close: () => setChosen("") }) : null
        ] }),
        pages.length || found.next_node ? /* @__PURE__ */ u4("div", { class: "buttons", children: [
          /* @__PURE__ */ u4("button", { type: "button", disabled: !pages.length, onClick: () => setPages(pages.slice(0, -1)), children: "Previous nodes" }),
          /* @__PURE__ */ u4("button", { type: "button", disabled: !found.next_node, onClick: () => setPages([...pages, found.next_node]), children: "Next nodes" })
        ] }) : null,
        /* @__PURE__ */ u4("h2", { children: "The same as a table" }),
        /* @__PURE__ */ u4(RunTable, { plan: found, choose: setChosen }),
        found.reservations.length ? /* @__PURE__ */ u4(Reservations, { list: found.reservations }) : null
      ] }) : /* @__PURE__ */ u4(Empty, { title: job ? "The forecast has no place for this job" : "No nodes yet", children: job ? /* @__PURE__ */ u4("p", { children: [
        /* @__PURE__ */ u4(JobLink, { id: job, children: "Its page" }),
        " says why it waits."
      ] }) : null })
    ] }) : plan.error ? null : /* @__PURE__ */ u4("p", { class: "muted", children: "Loading…" })
  ] });
}
function hoursText(hours) {
  return hours < 48 ? `${hours} h` : `${hours / 24} d`;
}
function Choice({ label, value, of, set, none }) {
  return /* @__PURE__ */ u4("label", { class: "inline", children: [
    label,
    /* @__PURE__ */ u4("select", { value, onChange: (event) => set(Number(event.currentTarget.value)), children: of.map((hours) => /* @__PURE__ */ u4("option", { value: hours, children: hours ? hoursText(hours) : none }, hours)) })
  ] });
}
function Summary2({ plan }) {
  const running = plan.runs.filter((run) => run.kind === "running").length;
  const figures = [
    [count(running), running === 1 ? "job runs on these nodes" : "jobs run on these nodes"],
    [count(plan.waiting), plan.waiting === 1 ? "job could start" : "jobs could start"],
    [count(plan.forecast), "of them have an expected start"]
  ];
  if (plan.reservations.length) figures.push([count(plan.reservations.length), plan.reservations.length === 1 ? "advance reservation" : "advance reservations"]);
  return /* @__PURE__ */ u4("ul", { class: "figures", children: figures.map(([figure, label]) => /* @__PURE__ */ u4("li", { children: [
    /* @__PURE__ */ u4("strong", { children: figure }),
    /* @__PURE__ */ u4("span", { children: label })
  ] }, label)) });
}
function Legend() {
  return /* @__PURE__ */ u4("ul", { class: "legend", "aria-label": "Legend", children: [
    /* @__PURE__ */ u4("li", { class: "legend-past", children: "ran" }),
    /* @__PURE__ */ u4("li", { class: "legend-running", children: "runs, until its expected end" }),
    /* @__PURE__ */ u4("li", { class: "legend-reserved", children: "reserved" }),
    /* @__PURE__ */ u4("li", { class: "legend-forecast", children: "forecast" }),
    /* @__PURE__ */ u4("li", { class: "legend-window", children: "advance reservation" }),
    /* @__PURE__ */ u4("li", { class: "legend-unknown", children: "? nothing says when it ends" })
  ] });
}
function predecessors(plan, run) {
  const found = /* @__PURE__ */ new Map();
  for (const place2 of run.places) {
    for (const gpu of place2.gpu_ids) {
      let last = null;
      for (const one of plan.runs) {
        if (one === run || one.kind === "past" || !one.end || !run.start || one.end > run.start) continue;
        if (!one.places.some((other) => other.node === place2.node && other.gpu_ids.includes(gpu))) continue;
        if (!last || (last.end ?? "") < one.end) last = one;
      }
      if (last) found.set(runId(last), last);
    }
  }
  return [...found.values()];
}
function Before({ plan, run }) {
  if (!run) return /* @__PURE__ */ u4("p", { class: "note", children: "No start of this job is expected within the hours shown. Look further ahead." });
  if (run.kind === "running") return /* @__PURE__ */ u4("p", { class: "note note-good", children: [
    "It runs since ",
    time(run.start),
    run.end ? ` and should end ${time(run.end)}` : "",
    "."
  ] });
  const before = predecessors(plan, run);
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Before it", children: [
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["Expected start", `${time(run.start)} (${until(run.start)})`],
          ["Expected end", run.end ? run.end_unknown ? "unknown" : time(run.end) : "never by itself"],
          ["By its time limit", run.latest_end ? time(run.latest_end) : ""],
          ["How sure", run.kind === "reserved" ? "reserved: later jobs do not delay it" : "forecast: later submissions may come first"],
          ["On", placesText(run)]
        ]
      }
    ),
    run.depends_on.length ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: [
      "This start depends on the unknown end of",
      " ",
      run.depends_on.map((id) => /* @__PURE__ */ u4("span", { children: [
        /* @__PURE__ */ u4(JobLink, { id }),
        " "
      ] }, id)),
      ": nothing says how long ",
      run.depends_on.length === 1 ? "it runs" : "they run",
      "."
    ] }) : null,
    before.length ? /* @__PURE__ */ u4(S, { children: [
      /* @__PURE__ */ u4("h2", { children: "Before it on its GPUs" }),
      /* @__PURE__ */ u4("ul", { children: before.map((one) => /* @__PURE__ */ u4("li", { children: [
        one.job_id ? /* @__PURE__ */ u4(JobLink, { id: one.job_id }) : "a job",
        " of ",
        one.user || "another user",
        ", until ",
        one.end_unknown ? "an unknown time (its time limit or default ends " : "",
        time(one.end_unknown ? one.latest_end ?? one.end : one.end),
        one.end_unknown ? ")" : ""
      ] }, runId(one))) })
    ] }) : /* @__PURE__ */ u4("p", { children: "No other job is before it on its GPUs." })
  ] });
}
function placesText(run) {
  return run.places.map((place2) => `${place2.node}[${place2.gpu_ids.map((gpu, index) => (place2.shares[index] ?? 1) < 1 ? `${gpu} at ${Math.round((place2.shares[index] ?? 1) * 100)} %` : gpu).join(",")}]`).join(" ");
}
function RunDetail({ run, close }) {
  return /* @__PURE__ */ u4("aside", { class: "card detail", "aria-label": "The chosen run", children: [
    /* @__PURE__ */ u4("div", { class: "tile-head", children: [
      /* @__PURE__ */ u4("h2", { children: run.job_id ? `${run.job_id}${run.task === null ? "" : `_${run.task}`}` : "A job of another user" }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Close", onClick: close, children: "×" })
    ] }),
    /* @__PURE__ */ u4(
      Facts,
      {
        of: [
          ["What", run.kind],
          ["Name", run.name],
          ["User", run.user ? /* @__PURE__ */ u4(Who, { name: run.user }) : ""],
          ["Start", time(run.start)],
          [run.kind === "past" ? "End" : "Expected end", run.end ? run.end_unknown ? "unknown" : time(run.end) : "never by itself"],
          ["By its time limit", run.latest_end ? time(run.latest_end) : ""],
          ["On", placesText(run)]
        ]
      }
    ),
    run.job_id ? /* @__PURE__ */ u4("p", { class: "buttons", children: [
      /* @__PURE__ */ u4(JobLink, { id: run.job_id, children: "Open the job" }),
      run.kind === "past" ? null : /* @__PURE__ */ u4("a", { href: `#/plan/${encodeURIComponent(run.job_id)}`, children: "Who is before it" })
    ] }) : null
  ] });
}
function RunTable({ plan, choose }) {
  const [most, setMost] = d2(100);
  const columns = [
    { name: "What", of: (run) => /* @__PURE__ */ u4("span", { class: `state state-${run.kind === "running" ? "running" : run.kind === "reserved" ? "upcoming" : "plain"}`, children: run.kind }) },
    { name: "Job", of: (run) => run.job_id ? /* @__PURE__ */ u4(JobLink, { id: run.job_id, children: `${run.job_id}${run.task === null ? "" : `_${run.task}`}` }) : "–" },
    { name: "User", of: (run) => run.user ? /* @__PURE__ */ u4(Who, { name: run.user }) : "–" },
    { name: "Start", of: (run) => `${time(run.start)}${run.depends_on.length ? " ?" : ""}` },
    { name: "End", of: (run) => run.end ? run.end_unknown ? "unknown" : time(run.end) : "–" },
    { name: "GPUs", of: (run) => trim(run.places.reduce((sum, place2) => sum + place2.shares.reduce((all, share) => all + share, 0), 0)), right: true },
    { name: "Where", of: (run) => /* @__PURE__ */ u4("span", { class: "mono", children: placesText(run) }), grow: true },
    {
      name: "",
      of: (run) => /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": `Details of ${run.job_id || "the run"}`, onClick: () => choose(runId(run)), children: "…" })
    }
  ];
  const rows = T2(() => [...plan.runs].sort((one, other) => (one.start ?? "").localeCompare(other.start ?? "")), [plan]);
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4(Table, { label: "Runs", columns, rows: rows.slice(0, most), id: runId }),
    rows.length > most ? /* @__PURE__ */ u4("p", { children: /* @__PURE__ */ u4("button", { type: "button", onClick: () => setMost(most + 400), children: [
      "Show more of ",
      plural(rows.length, "run")
    ] }) }) : null
  ] });
}
function Reservations({ list }) {
  const columns = [
    { name: "Reservation", of: (one) => one.id },
    { name: "For", of: (one) => one.user ? `${one.user} of ${one.tenant_id}` : one.tenant_id },
    { name: "Start", of: (one) => time(one.start) },
    { name: "End", of: (one) => time(one.end) },
    { name: "Where", of: (one) => /* @__PURE__ */ u4("span", { class: "mono", children: one.places.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" ") }), grow: true }
  ];
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h2", { children: "Advance reservations" }),
    /* @__PURE__ */ u4(Table, { label: "Advance reservations", columns, rows: list, id: (one) => one.id })
  ] });
}
function layOut2(plan, width) {
  const left = width < 560 ? NARROW_LABEL_PX : LABEL_PX;
  const begin = Date.parse(plan.begin ?? "");
  const end = Date.parse(plan.end ?? "");
  const scale = Math.max(1, width - left) / Math.max(1, end - begin);
  const x3 = (at) => left + (Math.min(Math.max(at, begin), end) - begin) * scale;
  const layout = { bars: [], rows: [], windows: [], ticks: [], nowX: x3(Date.parse(plan.made_at ?? "")), left, height: HEAD_PX };
  const rowOf = /* @__PURE__ */ new Map();
  for (const node of plan.nodes) {
    layout.height += NODE_GAP_PX;
    layout.rows.push({ y: layout.height, text: `${node.takes_work ? "" : "! "}${node.id}`, strong: true, height: ROW_PX2 });
    layout.height += ROW_PX2;
    for (const gpu of node.gpus) {
      rowOf.set(`${node.id}:${gpu.index}`, layout.height);
      layout.rows.push({ y: layout.height, text: left > 100 ? `${gpu.index} ${gpu.model}` : String(gpu.index), strong: false, height: ROW_PX2 });
      layout.height += ROW_PX2;
    }
  }
  layout.height += 4;
  const used = /* @__PURE__ */ new Map();
  for (const run of [...plan.runs].sort((one, other) => (one.start ?? "").localeCompare(other.start ?? ""))) {
    const from = Date.parse(run.start ?? "");
    const to = run.end ? Math.max(from + 1, Date.parse(run.end)) : end;
    for (const place2 of run.places) {
      place2.gpu_ids.forEach((gpu, index) => {
        const key = `${place2.node}:${gpu}`;
        const y5 = rowOf.get(key);
        if (y5 === void 0) return;
        const share = Math.min(1, place2.shares[index] ?? 1);
        const held = (used.get(key) ?? []).filter((one) => one.until > from);
        let top = 0;
        for (const one of [...held].sort((a4, b4) => a4.top - b4.top)) if (one.top < top + share && top < one.top + one.share) top = one.top + one.share;
        top = Math.min(top, 1 - share);
        used.set(key, [...held, { until: to, top, share }]);
        const inner = ROW_PX2 - 3;
        layout.bars.push({ x: x3(from), y: y5 + 1 + top * inner, width: Math.max(1.5, x3(to) - x3(from) - 1), height: Math.max(2, share * inner), run });
      });
    }
  }
  for (const reservation of plan.reservations) {
    const from = x3(Date.parse(reservation.start ?? ""));
    const to = x3(Date.parse(reservation.end ?? ""));
    for (const place2 of reservation.places) {
      for (const gpu of place2.gpu_ids) {
        const y5 = rowOf.get(`${place2.node}:${gpu}`);
        if (y5 !== void 0) layout.windows.push({ x: from, y: y5, width: to - from, height: ROW_PX2 - 1, reservation });
      }
    }
  }
  const spanHours = (end - begin) / 36e5;
  const step = [0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 168].find((hours) => (width - left) / spanHours * hours > 76) ?? 168;
  const offset = (/* @__PURE__ */ new Date()).getTimezoneOffset() * 6e4;
  const stepMs = step * 36e5;
  for (let at = Math.ceil((begin - offset) / stepMs) * stepMs + offset; at < end; at += stepMs) layout.ticks.push({ x: x3(at), text: tickText(new Date(at), step) });
  return layout;
}
function tickText(at, stepHours) {
  const clock3 = `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
  if (stepHours >= 24 || clock3 === "00:00") return `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}`;
  return clock3;
}
function Gantt({ plan, chosen, choose, focus }) {
  const canvas = A2(null);
  const [width, setWidth] = d2(0);
  const [hovered, setHovered] = d2(null);
  const layout = T2(() => layOut2(plan, width), [plan, width]);
  h2(() => {
    const element = canvas.current?.parentElement;
    if (!element) return void 0;
    const size = new ResizeObserver(() => {
      const style = getComputedStyle(element);
      setWidth(element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    });
    size.observe(element);
    return () => size.disconnect();
  }, []);
  h2(() => {
    const again = () => {
      if (canvas.current && width > 0) draw2(canvas.current, layout, width, chosen, focus?.job_id ?? "");
    };
    again();
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", again);
    return () => theme.removeEventListener("change", again);
  }, [layout, width, chosen, focus]);
  const at = (event) => layout.bars.findLast((bar) => event.offsetX >= bar.x - 1 && event.offsetX <= bar.x + bar.width + 1 && event.offsetY >= bar.y && event.offsetY <= bar.y + bar.height) ?? null;
  const run = hovered?.run;
  return /* @__PURE__ */ u4("div", { class: "map card", children: [
    /* @__PURE__ */ u4(
      "canvas",
      {
        ref: canvas,
        role: "img",
        "aria-label": `Time line of ${plural(plan.nodes.reduce((sum, node) => sum + node.gpus.length, 0), "GPU")} with ${plural(plan.runs.length, "run")}; the table below has the same data`,
        onMouseMove: (event) => setHovered(at(event)),
        onMouseLeave: () => setHovered(null),
        onClick: (event) => {
          const bar = at(event);
          choose(bar ? runId(bar.run) : "");
        }
      }
    ),
    /* @__PURE__ */ u4("p", { class: "map-line", "aria-hidden": "true", children: run ? `${run.job_id || "a job of another user"}${run.name ? ` ${run.name}` : ""} · ${run.user || "–"} · ${run.kind} · ${time(run.start)} to ${run.end ? run.end_unknown ? "an unknown end" : time(run.end) : "until it is stopped"}${run.start && run.end && !run.end_unknown ? ` (${duration((Date.parse(run.end) - Date.parse(run.start)) / 1e3)})` : ""}${run.depends_on.length ? ` · depends on the unknown end of ${run.depends_on.join(", ")}` : ""}` : "Point at a bar to read it; click to open it. A colour is a user; the line is now." })
  ] });
}
function draw2(canvas, layout, width, chosen, focus) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${layout.height}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const css = (name) => style.getPropertyValue(name).trim();
  const dark = css("--dark") === "1";
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, layout.height);
  const font = css("--font");
  pen.font = `11px ${font}`;
  for (const row of layout.rows) {
    if (!row.strong) {
      pen.fillStyle = css("--cell");
      pen.globalAlpha = 0.55;
      pen.fillRect(layout.left, row.y + 1, width - layout.left, row.height - 3);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = css(row.strong ? "--text" : "--muted");
    pen.font = `${row.strong ? "600 12px" : "11px"} ${font}`;
    pen.fillText(fitted(pen, row.text, row.strong ? width : layout.left - 8), 0, row.y + row.height - 6);
  }
  pen.font = `11px ${font}`;
  for (const tick of layout.ticks) {
    pen.fillStyle = css("--line");
    pen.fillRect(tick.x, HEAD_PX - 4, 1, layout.height - HEAD_PX);
    pen.fillStyle = css("--muted");
    if (tick.x + pen.measureText(tick.text).width < width) pen.fillText(tick.text, tick.x, 12);
  }
  for (const one of layout.windows) {
    pen.fillStyle = css("--other-soft");
    pen.fillRect(one.x, one.y, one.width, one.height);
    pen.strokeStyle = css("--other");
    pen.setLineDash([4, 3]);
    pen.strokeRect(one.x + 0.5, one.y + 0.5, Math.max(1, one.width - 1), one.height - 1);
    pen.setLineDash([]);
    pen.fillStyle = css("--other");
    if (one.width > 60) pen.fillText(fitted(pen, `${one.reservation.id} ${one.reservation.user || one.reservation.tenant_id}`, one.width - 8), one.x + 4, one.y + 13);
  }
  for (const bar of layout.bars) drawBar(pen, bar, dark, css, bar.run.job_id !== "" && bar.run.job_id === focus, runId(bar.run) === chosen);
  pen.fillStyle = css("--bad");
  pen.fillRect(layout.nowX - 0.75, HEAD_PX - 8, 1.5, layout.height - HEAD_PX + 8);
  pen.globalAlpha = 1;
}
function drawBar(pen, bar, dark, css, isFocus, isChosen) {
  const { x: x3, y: y5, width, height, run } = bar;
  const tone = run.user ? hue(run.user) : 0;
  const saturation = run.user ? 60 : 0;
  const colour = (light) => `hsl(${tone} ${saturation}% ${light}%)`;
  pen.save();
  pen.beginPath();
  pen.rect(x3, y5, width, height);
  pen.clip();
  const isSolid = run.kind === "past" || run.kind === "running";
  pen.fillStyle = isSolid ? colour(dark ? run.kind === "past" ? 30 : 42 : run.kind === "past" ? 68 : 38) : colour(dark ? 21 : 90);
  pen.fillRect(x3, y5, width, height);
  if (run.kind === "reserved") {
    pen.strokeStyle = colour(dark ? 52 : 62);
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = x3 - height; at < x3 + width; at += 7) {
      pen.moveTo(at, y5 + height);
      pen.lineTo(at + height, y5);
    }
    pen.stroke();
  }
  if (!isSolid) {
    pen.strokeStyle = colour(dark ? 55 : 55);
    pen.lineWidth = 1;
    if (run.kind === "forecast") pen.setLineDash([3, 3]);
    pen.strokeRect(x3 + 0.5, y5 + 0.5, width - 1, height - 1);
    pen.setLineDash([]);
  }
  if (height > 10 && width > 26) {
    const mark = run.end_unknown || run.depends_on.length ? " ?" : "";
    const text = fitted(pen, `${run.job_id ? run.job_id.replace("job-", "") : ""}${run.task === null ? "" : `_${run.task}`}${mark} ${run.name || run.user}`, width - 8);
    if (run.kind === "reserved" && text) {
      pen.fillStyle = colour(dark ? 21 : 90);
      pen.fillRect(x3 + 2, y5 + 2, pen.measureText(text).width + 4, height - 4);
    }
    pen.fillStyle = run.kind === "running" ? "#ffffff" : run.kind === "past" ? dark ? "#ffffff" : "#10131a" : css("--text");
    pen.fillText(text, x3 + 4, y5 + height / 2 + 4);
  }
  pen.restore();
  if (isFocus || isChosen) {
    pen.strokeStyle = css("--text");
    pen.lineWidth = 2;
    pen.strokeRect(x3, y5, width, height);
    pen.lineWidth = 1;
  }
}
function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.floor(width / 4));
  while (length > 0 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

// src/queue.tsx
var PAGE = 200;
var ENDED2 = "completed,failed,cancelled";
var GROUPS = ["none", "user", "tenant", "state"];
var CHOICES = ["User", "Tenant", "GPUs", "Priority", "Place", "Where", "Since", "Starts", "Ends", "Why"];
function ofLine(line2) {
  return {
    ...line2,
    tenant: line2.tenant_id,
    places: line2.places.join(" "),
    since: line2.started_at ?? line2.submitted_at,
    start: line2.expected_start,
    end: line2.expected_end,
    mayChange: line2.may_change
  };
}
function ofJob(job) {
  return {
    ...job,
    tenant: job.tenant_id,
    gpus: job.gpu_count,
    places: job.allocation.map((place2) => place2.node).join(" "),
    position: null,
    since: job.ended_at,
    start: null,
    end: null,
    tasks: job.array?.tasks ?? "",
    mayChange: !job.redacted
  };
}
function Queue() {
  const [ended, setEnded] = d2(false);
  const [words2, setWords] = d2("");
  const [mine, setMine] = d2(false);
  const [sort, setSort] = d2("queue");
  const [group, setGroup] = d2("none");
  const [offset, setOffset] = d2(0);
  const [selected, setSelected] = d2(/* @__PURE__ */ new Set());
  const [current, setCurrent] = d2(-1);
  const [hiddenColumns, setHiddenColumns] = d2(/* @__PURE__ */ new Set(["Tenant"]));
  const order = group === "none" ? sort : group;
  const page = useLive((signal) => ended ? endedJobs(words2, mine, offset, signal) : activeJobs(words2, mine, order, offset, signal), 2500, [
    ended,
    words2,
    mine,
    order,
    offset
  ]);
  const onWindow = q2((first, rows2) => {
    setOffset((old) => first < old || first + rows2 > old + PAGE ? Math.max(0, Math.round(first - (PAGE - rows2) / 2)) : old);
  }, []);
  const { data } = page;
  const rows = data?.rows ?? [];
  const toggle = (row) => setSelected((old) => {
    const next = new Set(old);
    if (!next.delete(row.id)) next.add(row.id);
    return next;
  });
  const run = (action, ids = [...selected]) => {
    const one = rows.find((row) => row.id === ids[0]);
    if (ids.length)
      void act(
        action,
        ids,
        () => {
          setSelected(/* @__PURE__ */ new Set());
          page.refresh();
        },
        one?.priority
      );
  };
  _2(() => {
    const press = (event) => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), textarea, select, button, a, dialog *");
      if (inField || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const row = rows[current];
      const ids = selected.size ? [...selected] : row?.mayChange ? [row.id] : [];
      if (event.key === "j" || event.key === "ArrowDown") setCurrent((old) => Math.min(rows.length - 1, old + 1));
      else if (event.key === "k" || event.key === "ArrowUp") setCurrent((old) => Math.max(0, old - 1));
      else if (event.key === "Enter" && row) location.hash = `#/jobs/${row.id}`;
      else if (event.key === " " && row?.mayChange) toggle(row);
      else if (event.key === "x" && !ended) run("cancel", ids);
      else if (event.key === "h" && !ended) run(row?.hold && !selected.size ? "release" : "hold", ids);
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
  const restart = (change) => {
    change();
    setOffset(0);
    setSelected(/* @__PURE__ */ new Set());
    setCurrent(-1);
    document.querySelector(".windowed")?.scrollTo(0, 0);
  };
  return /* @__PURE__ */ u4("div", { class: "page-tall", children: [
    /* @__PURE__ */ u4("h1", { children: "Queue" }),
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("div", { class: "tabs", role: "group", "aria-label": "Which jobs", children: [
        /* @__PURE__ */ u4("button", { type: "button", "aria-pressed": !ended, onClick: () => restart(() => setEnded(false)), children: "Running and waiting" }),
        /* @__PURE__ */ u4("button", { type: "button", "aria-pressed": ended, onClick: () => restart(() => setEnded(true)), children: "Ended" })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Search",
        /* @__PURE__ */ u4("input", { type: "search", value: words2, placeholder: ended ? "name" : "id, name, user, state", onInput: (event) => restart(() => setWords(event.currentTarget.value)) })
      ] }),
      /* @__PURE__ */ u4("label", { class: "inline", children: [
        /* @__PURE__ */ u4("input", { type: "checkbox", checked: mine, onChange: (event) => restart(() => setMine(event.currentTarget.checked)) }),
        " Mine"
      ] }),
      ended ? null : /* @__PURE__ */ u4("label", { class: "inline", children: [
        "Group by",
        /* @__PURE__ */ u4("select", { value: group, onChange: (event) => restart(() => setGroup(event.currentTarget.value)), children: GROUPS.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one }, one)) })
      ] }),
      /* @__PURE__ */ u4(ColumnChoice, { hidden: hiddenColumns, change: setHiddenColumns }),
      /* @__PURE__ */ u4("span", { class: "muted counts", children: ended ? data ? plural(data.total, "job") : "" : countsText(data?.counts) })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: page.error }),
    selected.size ? /* @__PURE__ */ u4("div", { class: "toolbar chosen-bar", role: "toolbar", "aria-label": "Actions on the selected jobs", children: [
      /* @__PURE__ */ u4("strong", { children: [
        plural(selected.size, "job"),
        " selected"
      ] }),
      (ended ? ["retry"] : ["cancel", "hold", "release", "priority"]).map((action) => /* @__PURE__ */ u4("button", { type: "button", class: action === "cancel" ? "danger" : "", onClick: () => run(action), children: action }, action)),
      /* @__PURE__ */ u4("button", { type: "button", class: "plain", onClick: () => setSelected(/* @__PURE__ */ new Set()), children: "Clear" })
    ] }) : null,
    data && data.total === 0 ? /* @__PURE__ */ u4(Nothing, { ended, filtered: Boolean(words2) || mine }) : /* @__PURE__ */ u4(
      WindowedTable,
      {
        columns: columnsFor(ended, selected, toggle, hiddenColumns),
        total: data?.total ?? 0,
        offset: data?.offset ?? 0,
        rows,
        id: (row) => row.id,
        label: ended ? "Ended jobs" : "Running and waiting jobs",
        sort: group === "none" ? sort : group,
        ...ended ? {} : { onSort: (next) => restart(() => {
          setGroup("none");
          setSort(next);
        }) },
        onWindow,
        current: rows[current]?.id ?? "",
        rowClass: (row, index) => group !== "none" && isFirst(rows, index - (data?.offset ?? 0), group) ? "first-of-group" : selected.has(row.id) ? "selected" : ""
      }
    )
  ] });
}
function isFirst(rows, place2, group) {
  return place2 > 0 && rows[place2]?.[group] !== rows[place2 - 1]?.[group];
}
async function activeJobs(words2, mine, sort, offset, signal) {
  const query = { filter: words2, user: mine ? "@me" : "", sort, offset, limit: PAGE, without_gpus: true };
  const found = await call("GET /overview", { query, signal });
  return { rows: found.jobs.map(ofLine), offset: found.offset, total: found.total, counts: found.counts };
}
async function endedJobs(words2, mine, offset, signal) {
  const query = { state: ENDED2, name: words2, user: mine ? "@me" : "", sort: "-ended_at", offset, limit: PAGE };
  const found = await call("GET /jobs", { query, signal });
  return { rows: found.jobs.map(ofJob), offset, total: found.total, counts: {} };
}
function countsText(counts) {
  return counts ? Object.entries(counts).filter(([, number]) => number > 0).map(([state, number]) => `${count(number)} ${state}`).join(" · ") : "";
}
function Nothing({ ended, filtered }) {
  if (filtered) return /* @__PURE__ */ u4(Empty, { title: "No job matches", children: "Change the search, or show the jobs of everybody." });
  return ended ? /* @__PURE__ */ u4(Empty, { title: "No job has ended yet" }) : /* @__PURE__ */ u4(Empty, { title: "The queue is empty", children: /* @__PURE__ */ u4("p", { children: [
    "Submit one: ",
    /* @__PURE__ */ u4("code", { children: "tgpu submit --gpus 1 -- python train.py" })
  ] }) });
}
function columnsFor(ended, selected, toggle, hidden) {
  const all = [
    {
      name: "",
      key: "select",
      of: (row) => row.mayChange ? /* @__PURE__ */ u4("input", { type: "checkbox", "aria-label": `Select ${row.id}`, checked: selected.has(row.id), onChange: () => toggle(row) }) : null
    },
    { name: "Job", sort: "number", of: (row) => /* @__PURE__ */ u4(JobLink, { id: row.id }) },
    { name: "Name", sort: "name", of: (row) => /* @__PURE__ */ u4("span", { class: "cut", children: [
      row.name,
      row.tasks ? /* @__PURE__ */ u4("span", { class: "muted", children: [
        " [",
        row.tasks,
        "]"
      ] }) : null
    ] }) },
    { name: "State", sort: "state", of: (row) => /* @__PURE__ */ u4(State, { state: row.hold && row.state === "pending" ? "held" : row.state }) },
    { name: "User", sort: "user", of: (row) => /* @__PURE__ */ u4(Who, { name: row.user }) },
    { name: "Tenant", sort: "tenant", of: (row) => row.tenant },
    { name: "GPUs", sort: "gpus", right: true, of: (row) => trim(row.gpus) },
    { name: "Priority", sort: "priority", right: true, of: (row) => row.priority || "" },
    ended ? null : { name: "Place", sort: "queue", right: true, of: (row) => row.position ?? "" },
    { name: "Where", of: (row) => /* @__PURE__ */ u4("span", { class: "cut mono", children: row.places }) },
    ended ? { name: "Ended", right: true, key: "Since", of: (row) => time(row.since) } : { name: "Since", sort: "time", right: true, of: (row) => since(row.since) },
    ended ? null : { name: "Starts", right: true, of: (row) => row.position === null ? "" : row.start ? /* @__PURE__ */ u4("span", { title: time(row.start), children: until(row.start) }) : "unknown" },
    ended ? null : { name: "Ends", right: true, of: (row) => row.end ? /* @__PURE__ */ u4("span", { title: time(row.end), children: until(row.end) }) : "" },
    { name: "Why", grow: true, of: (row) => /* @__PURE__ */ u4("span", { title: row.reason, children: row.reason }) }
  ];
  return all.filter((column) => column !== null && !hidden.has(column.key ?? column.name));
}
function ColumnChoice({ hidden, change }) {
  return /* @__PURE__ */ u4("details", { class: "choice", children: [
    /* @__PURE__ */ u4("summary", { children: "Columns" }),
    /* @__PURE__ */ u4("div", { children: CHOICES.map((name) => /* @__PURE__ */ u4("label", { children: [
      /* @__PURE__ */ u4(
        "input",
        {
          type: "checkbox",
          checked: !hidden.has(name),
          onChange: () => {
            const next = new Set(hidden);
            if (!next.delete(name)) next.add(name);
            change(next);
          }
        }
      ),
      name
    ] }, name)) })
  ] });
}

// src/submit.tsx
var CHECK_AFTER_MS = 400;
var ASK_AFTER_MS = 900;
var MOST_PREVIEWED = 60;
var GPU_STEPS = [1, 2, 4, 8];
var START = { command: ["python", "train.py"], gpu_count: 1, max_runtime_minutes: 240 };
function Submit({ from }) {
  const [file, setFile] = d2(jobFile(START));
  const [command, setCommand] = d2(line(START.command ?? []));
  const [sweep, setSweep] = d2("");
  const [left, setLeft] = d2([]);
  const [error, setError] = d2(null);
  const [sent, setSent] = d2([]);
  const [isSending, setSending] = d2(false);
  h2(() => {
    if (!from) return;
    void call("GET /jobs/{job_id}", { path: { job_id: from } }).then((job) => {
      if (job.redacted) throw new ApiError(403, "forbidden", `${from} belongs to ${job.user}; only its own jobs can a user submit again`);
      const found = requestOf(job);
      setFile(jobFile(found.body));
      setCommand(line(found.body.command ?? []));
      setLeft(found.left);
    }).catch((problem) => setError(problem instanceof ApiError ? problem : null));
  }, [from]);
  const read = T2(() => readFile(file), [file]);
  const body = read.body;
  const params = T2(() => readSweep(sweep), [sweep]);
  const isSweep = Object.keys(params.found).length > 0;
  const jobs = T2(() => body && isSweep ? combinations(params.found).map((values) => filledIn(body, values, "preview")) : [], [body, params, isSweep]);
  const first = isSweep ? jobs[0] ?? null : body;
  const checked = useChecked(first);
  const change = (fields) => {
    const made = { ...body ?? {}, ...fields };
    for (const [name, value] of Object.entries(made)) if (value === void 0 || value === "" || Array.isArray(value) && value.length === 0 && name !== "command") delete made[name];
    setFile(jobFile(made));
  };
  const submit = async () => {
    if (!body) return;
    setSending(true);
    setError(null);
    try {
      if (isSweep) {
        const name = sweepName(body.name ?? "sweep");
        const answer = await call("POST /jobs/bulk", { body: combinations(params.found).map((values) => filledIn(body, values, body.sweep || name)) });
        setSent(answer.job_ids);
        notify(`Submitted ${plural(answer.count, "job")}.`);
      } else {
        const answer = await call("POST /jobs", { body });
        const id = "job_id" in answer ? answer.job_id : "";
        setSent([id]);
        notify(`Submitted ${id}.`);
      }
    } catch (problem) {
      setError(problem instanceof ApiError ? problem : new ApiError(0, "", "the server could not be reached; it is unknown whether it took the job"));
    }
    setSending(false);
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: from ? `Submit ${from} again` : "Submit" }),
    left.length ? /* @__PURE__ */ u4("p", { class: "note", children: [
      "Not taken over: ",
      left.join(", "),
      "."
    ] }) : null,
    /* @__PURE__ */ u4(Problem, { error }),
    sent.length ? /* @__PURE__ */ u4("p", { class: "note note-good", role: "status", children: [
      "Submitted",
      " ",
      sent.slice(0, 5).map((id) => /* @__PURE__ */ u4("span", { children: [
        /* @__PURE__ */ u4(JobLink, { id }),
        " "
      ] }, id)),
      sent.length > 5 ? `and ${count(sent.length - 5)} more` : ""
    ] }) : null,
    /* @__PURE__ */ u4("div", { class: "two", children: [
      /* @__PURE__ */ u4(
        "form",
        {
          class: "card",
          onSubmit: (event) => {
            event.preventDefault();
            void submit();
          },
          children: [
            /* @__PURE__ */ u4(
              Fields,
              {
                body,
                command,
                setCommand: (text) => {
                  setCommand(text);
                  try {
                    change({ command: words(text) });
                  } catch {
                  }
                },
                change
              }
            ),
            /* @__PURE__ */ u4("label", { children: [
              "Sweep: one parameter in a line, as lr=0.1,0.01; use it as ",
              "{lr}",
              " in the command",
              /* @__PURE__ */ u4("textarea", { rows: 2, value: sweep, spellcheck: false, onInput: (event) => setSweep(event.currentTarget.value) })
            ] }),
            params.problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: params.problem }) : null,
            /* @__PURE__ */ u4("div", { class: "buttons", children: /* @__PURE__ */ u4("button", { type: "submit", class: "primary", disabled: !body || isSending || checked.error !== null || params.problem !== "", children: isSweep ? `Submit ${plural(jobs.length, "job")}` : "Submit" }) })
          ]
        }
      ),
      /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Job file", children: [
        /* @__PURE__ */ u4("label", { children: [
          "Job file (the fields of the REST API)",
          /* @__PURE__ */ u4(
            "textarea",
            {
              rows: 14,
              value: file,
              spellcheck: false,
              onInput: (event) => {
                setFile(event.currentTarget.value);
                const { body: typed } = readFile(event.currentTarget.value);
                if (typed?.command) setCommand(line(typed.command));
              }
            }
          )
        ] }),
        /* @__PURE__ */ u4(Check, { problem: read.problem, checked })
      ] })
    ] }),
    first && !read.problem ? /* @__PURE__ */ u4(Answers, { body: first, isValid: checked.valid !== null, change }) : null,
    isSweep && body ? /* @__PURE__ */ u4(Preview, { params: params.found, jobs }) : null,
    body ? /* @__PURE__ */ u4(Printed, { body, params: params.found }) : null
  ] });
}
function readFile(text) {
  try {
    const found = JSON.parse(text);
    if (found === null || typeof found !== "object" || Array.isArray(found)) return { body: null, problem: "a job file is one object, in braces" };
    const { command } = found;
    if (command !== void 0 && !(Array.isArray(command) && command.every((word) => typeof word === "string"))) return { body: null, problem: "command is a list of texts" };
    return { body: found, problem: "" };
  } catch (error) {
    return { body: null, problem: error instanceof Error ? error.message : "not JSON" };
  }
}
function readSweep(text) {
  try {
    return { found: readParams(text), problem: "" };
  } catch (error) {
    return { found: {}, problem: error instanceof Error ? error.message : "" };
  }
}
function useChecked(body) {
  const text = body ? JSON.stringify(body) : "";
  const [state, setState] = d2({ valid: null, error: null, text: "" });
  h2(() => {
    if (!text) return void 0;
    const stop = new AbortController();
    const timer = window.setTimeout(() => {
      call("POST /jobs/validate", { body: JSON.parse(text), signal: stop.signal }).then((valid) => setState({ valid, error: null, text })).catch((error) => {
        if (error instanceof ApiError) setState({ valid: null, error, text });
      });
    }, CHECK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  return state.text === text ? state : { valid: null, error: null };
}
function Check({ problem, checked }) {
  const { valid, error } = checked;
  return /* @__PURE__ */ u4("div", { "aria-live": "polite", class: "check", children: problem ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: [
    "Not a job yet: ",
    problem
  ] }) : error ? /* @__PURE__ */ u4("p", { class: "note note-bad", children: error.message }) : valid ? /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("p", { class: "note note-good", children: [
      "Would be accepted",
      valid.position ? `, as number ${valid.position} of the queue` : "",
      ".",
      " ",
      valid.expected_start ? `Expected start ${time(valid.expected_start)} (${until(valid.expected_start)})${valid.expected_end ? `, end ${time(valid.expected_end)}` : ""}.` : valid.start_unknown ? `Its start is unknown: ${valid.start_unknown}.` : ""
    ] }),
    valid.warnings.map((text) => /* @__PURE__ */ u4("p", { class: "note", children: text }, text))
  ] }) : /* @__PURE__ */ u4("p", { class: "muted", children: "Checking…" }) });
}
function Fields({ body, command, setCommand, change }) {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const models = [...new Set((nodes.data?.nodes ?? []).flatMap((node) => node.gpu_models))].sort();
  let problem = "";
  try {
    words(command);
  } catch (error) {
    problem = error instanceof Error ? error.message : "";
  }
  const number = (text) => text === "" || Number.isNaN(Number(text)) ? void 0 : Number(text);
  return /* @__PURE__ */ u4("div", { class: "form", children: [
    /* @__PURE__ */ u4("label", { class: "wide", children: [
      "Command",
      /* @__PURE__ */ u4("input", { class: "mono", value: command, spellcheck: false, disabled: !body, onInput: (event) => setCommand(event.currentTarget.value) })
    ] }),
    problem ? /* @__PURE__ */ u4("p", { class: "note note-bad wide", children: problem }) : null,
    /* @__PURE__ */ u4("label", { children: [
      "Name",
      /* @__PURE__ */ u4("input", { value: body?.name ?? "", disabled: !body, onInput: (event) => change({ name: event.currentTarget.value }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "GPUs",
      /* @__PURE__ */ u4("input", { type: "number", min: 0, step: 0.01, value: body?.gpu_count ?? "", disabled: !body, onInput: (event) => change({ gpu_count: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "GPU model",
      /* @__PURE__ */ u4("select", { value: body?.gpu_models?.[0] ?? "", disabled: !body, onChange: (event) => change({ gpu_models: event.currentTarget.value ? [event.currentTarget.value] : [] }), children: [
        /* @__PURE__ */ u4("option", { value: "", children: "any" }),
        [.../* @__PURE__ */ new Set([...models, ...body?.gpu_models ?? []])].map((model) => /* @__PURE__ */ u4("option", { value: model, children: model }, model))
      ] })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "Time limit (minutes)",
      /* @__PURE__ */ u4("input", { type: "number", min: 1, value: body?.max_runtime_minutes ?? "", disabled: !body, onInput: (event) => change({ max_runtime_minutes: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "Priority",
      /* @__PURE__ */ u4(
        "select",
        {
          value: String(body?.priority ?? 750),
          disabled: !body,
          onChange: (event) => change({ priority: event.currentTarget.value === "750" ? void 0 : number(event.currentTarget.value) ?? event.currentTarget.value }),
          children: [
            [["250", "low"], ["750", "normal"], ["1500", "high"], ["2500", "urgent"]].map(([value, name]) => /* @__PURE__ */ u4("option", { value, children: name }, value)),
            ["250", "750", "1500", "2500"].includes(String(body?.priority ?? 750)) ? null : /* @__PURE__ */ u4("option", { value: String(body?.priority), children: String(body?.priority) })
          ]
        }
      )
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "CPU cores",
      /* @__PURE__ */ u4("input", { type: "number", min: 0, step: 0.5, value: body?.cpu_cores ?? "", disabled: !body, onInput: (event) => change({ cpu_cores: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { children: [
      "Memory (MB)",
      /* @__PURE__ */ u4("input", { type: "number", min: 0, value: body?.memory_mb ?? "", disabled: !body, onInput: (event) => change({ memory_mb: number(event.currentTarget.value) }) })
    ] }),
    /* @__PURE__ */ u4("label", { class: "wide", children: [
      "Directory",
      /* @__PURE__ */ u4("input", { class: "mono", value: body?.working_directory ?? "", spellcheck: false, disabled: !body, onInput: (event) => change({ working_directory: event.currentTarget.value }) })
    ] })
  ] });
}
function variantsOf(body, models) {
  const gpus = body.gpu_count ?? 0;
  const minutes = body.max_runtime_minutes;
  const found = [{ label: "as written", fields: {} }];
  for (const other2 of GPU_STEPS) if (other2 !== gpus) found.push({ label: plural(other2, "GPU"), fields: { gpu_count: other2 } });
  if (minutes && minutes > 1) found.push({ label: `limit ${trim(minutes / 2, 1)} min`, fields: { max_runtime_minutes: minutes / 2 } });
  const other = models.find((model) => !body.gpu_models?.includes(model));
  if (other && models.length > 1) found.push({ label: other, fields: { gpu_models: [other] } });
  found.push(body.priority === 1500 || body.priority === "high" ? { label: "priority normal", fields: { priority: 750 } } : { label: "priority high", fields: { priority: 1500 } });
  return found.slice(0, 8);
}
function Answers({ body, isValid, change }) {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const [again, setAgain] = d2(0);
  const [state, setState] = d2({ answer: null, variants: [], error: null, isBusy: false });
  const text = JSON.stringify(body);
  const models = [...new Set((nodes.data?.nodes ?? []).flatMap((node) => node.gpu_models))].sort().join("\n");
  h2(() => {
    if (!isValid) return void 0;
    const stop = new AbortController();
    let retry = 0;
    const timer = window.setTimeout(() => {
      const job = JSON.parse(text);
      const variants = variantsOf(job, models.split("\n"));
      setState((old) => ({ ...old, isBusy: true }));
      call("POST /what-if", { body: { jobs: variants.map((one) => ({ ...job, ...one.fields })) }, signal: stop.signal }).then((answer) => setState({ answer, variants, error: null, isBusy: false })).catch((error) => {
        if (error instanceof ApiError && error.status === 429) retry = window.setTimeout(() => setAgain((old) => old + 1), 1e3);
        else if (error instanceof ApiError) setState((old) => ({ ...old, error, isBusy: false }));
      });
    }, ASK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      clearTimeout(retry);
      stop.abort();
    };
  }, [text, models, isValid, again]);
  const rows = (state.answer?.jobs ?? []).flatMap((answer, place2) => {
    const variant = state.variants[place2];
    return variant ? [{ ...variant, answer }] : [];
  });
  const currency = state.answer?.currency ?? "";
  const columns = [
    { name: "With", of: (row) => row.label },
    { name: "Expected start", of: ({ answer }) => startText(answer) },
    { name: "Expected end", of: ({ answer }) => answer.error ? "" : answer.expected_end ? time(answer.expected_end) : answer.expected_start && answer.latest_end ? `by ${time(answer.latest_end)}` : "unknown" },
    { name: "Cost of GPUs", of: ({ answer }) => !answer.cost ? "–" : `${trim(answer.cost)} ${currency}`, right: true },
    { name: "Delays", of: ({ answer }) => answer.effect?.later ? plural(answer.effect.later, "job") : answer.error ? "" : "nobody" },
    { name: "Where, or why not", of: ({ answer }) => /* @__PURE__ */ u4("span", { class: "muted", children: answer.error || reasonText(answer) }), grow: true },
    {
      name: "",
      of: (row) => Object.keys(row.fields).length && !row.answer.error ? /* @__PURE__ */ u4("button", { type: "button", class: "small", "aria-label": `Take ${row.label}`, onClick: () => change(row.fields), children: "Take" }) : null
    }
  ];
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Side by side", "aria-busy": state.isBusy, children: [
    /* @__PURE__ */ u4("div", { class: "toolbar", children: [
      /* @__PURE__ */ u4("h2", { children: "Side by side" }),
      /* @__PURE__ */ u4("button", { type: "button", class: "small", onClick: () => setAgain(again + 1), children: "Ask again" }),
      /* @__PURE__ */ u4("span", { class: "muted", role: "status", children: state.isBusy ? "The engine rolls the cluster forward…" : "" })
    ] }),
    /* @__PURE__ */ u4(Problem, { error: state.error }),
    rows.length ? /* @__PURE__ */ u4(Table, { label: "Answers", columns, rows, id: (row) => row.label }) : /* @__PURE__ */ u4("p", { class: "muted", children: "As soon as the job is valid, the engine answers here when it and its variants would start." }),
    state.answer?.cut.map((text2) => /* @__PURE__ */ u4("p", { class: "note", children: text2 }, text2))
  ] });
}
function startText(answer) {
  if (answer.error) return "rejected";
  if (!answer.expected_start) return "unknown";
  return `${answer.depends_on.length ? "about " : ""}${Date.parse(answer.expected_start) - Date.now() < 5e3 ? "now" : `${time(answer.expected_start)} (${until(answer.expected_start)})`}`;
}
function reasonText(answer) {
  if (answer.start_unknown) return answer.start_unknown;
  if (answer.depends_on.length) return `depends on the unknown end of ${answer.depends_on.join(", ")}`;
  return answer.places.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" ");
}
function Preview({ params, jobs }) {
  const names = Object.keys(params);
  const columns = [...names.map((name) => ({ name, of: (job) => job.params?.[name] ?? "" })), { name: "Command", of: (job) => /* @__PURE__ */ u4("span", { class: "mono", children: line(job.command ?? []) }), grow: true }];
  const [rows, across] = names;
  return /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Sweep", children: [
    /* @__PURE__ */ u4("h2", { children: [
      "Sweep of ",
      plural(jobs.length, "job")
    ] }),
    names.length === 2 && rows && across ? /* @__PURE__ */ u4("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": "Grid", children: /* @__PURE__ */ u4("table", { children: [
      /* @__PURE__ */ u4("thead", { children: /* @__PURE__ */ u4("tr", { children: [
        /* @__PURE__ */ u4("th", { scope: "col", children: [
          rows,
          " \\ ",
          across
        ] }),
        params[across]?.map((value) => /* @__PURE__ */ u4("th", { scope: "col", children: value }, value))
      ] }) }),
      /* @__PURE__ */ u4("tbody", { children: params[rows]?.map((value) => /* @__PURE__ */ u4("tr", { children: [
        /* @__PURE__ */ u4("th", { scope: "row", children: value }),
        params[across]?.map((other) => /* @__PURE__ */ u4("td", { class: "mono", children: line(jobs.find((job) => job.params?.[rows] === value && job.params[across] === other)?.command ?? []) }, other))
      ] }, value)) })
    ] }) }) : /* @__PURE__ */ u4(Table, { label: "Grid", columns, rows: jobs.slice(0, MOST_PREVIEWED), id: (job) => JSON.stringify(job.params) }),
    names.length !== 2 && jobs.length > MOST_PREVIEWED ? /* @__PURE__ */ u4("p", { class: "muted", children: [
      "and ",
      count(jobs.length - MOST_PREVIEWED),
      " more"
    ] }) : null
  ] });
}
function Printed({ body, params }) {
  const command = tgpuLine(body, params);
  return /* @__PURE__ */ u4("div", { class: "two", children: [
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Command line", children: [
      /* @__PURE__ */ u4("h2", { children: "As a command" }),
      /* @__PURE__ */ u4(Code, { text: command ?? `tgpu submit job.json   # with this file:
${jobFile(body)}` })
    ] }),
    /* @__PURE__ */ u4("section", { class: "card", "aria-label": "Python", children: [
      /* @__PURE__ */ u4("h2", { children: "As Python" }),
      /* @__PURE__ */ u4(Code, { text: pythonText(body, params) })
    ] })
  ] });
}

// src/whatif.tsx
var POLICIES = ["fair", "fifo", "sjf", "skip", "easy", "conservative", "short", "best_fit", "fgd", "balance", "packing"];
var EMPTY = { drained: [], added: "", like: "", gpus: "", reservedFor: "default", inHours: "1", forHours: "4", tenant: "", quota: "", policy: "" };
function WhatIf() {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const tenants = useLive((signal) => call("GET /tenants", { signal }), 0, []);
  const [draft, setDraft] = d2(EMPTY);
  const [state, setState] = d2({ answer: null, error: null, isBusy: false, asked: "" });
  const names = (nodes.data?.nodes ?? []).map((node) => node.id);
  const owners = [.../* @__PURE__ */ new Set(["default", ...(tenants.data?.tenants ?? []).map((tenant) => tenant.id)])];
  const set = (fields) => setDraft({ ...draft, ...fields });
  const request = requestOf2(draft, names[0] ?? "");
  const asked = describe(draft, names[0] ?? "");
  const ask2 = async () => {
    setState({ ...state, error: null, isBusy: true });
    try {
      setState({ answer: await call("POST /what-if", { body: request }), error: null, isBusy: false, asked });
    } catch (error) {
      setState({ answer: null, error: error instanceof ApiError ? error : new ApiError(0, "", "the server could not be reached"), isBusy: false, asked });
    }
  };
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("h1", { children: "What if" }),
    /* @__PURE__ */ u4("p", { class: "muted", children: "The engine answers on a copy of the cluster. Nothing is changed, and scheduling does not wait." }),
    /* @__PURE__ */ u4(
      "form",
      {
        class: "card",
        onSubmit: (event) => {
          event.preventDefault();
          void ask2();
        },
        children: [
          /* @__PURE__ */ u4("div", { class: "sets", children: [
            /* @__PURE__ */ u4("fieldset", { children: [
              /* @__PURE__ */ u4("legend", { children: "Nodes" }),
              /* @__PURE__ */ u4("label", { children: [
                "Drained",
                /* @__PURE__ */ u4("select", { multiple: true, size: Math.min(5, Math.max(2, names.length)), onChange: (event) => set({ drained: [...event.currentTarget.selectedOptions].map((one) => one.value) }), children: names.map((name) => /* @__PURE__ */ u4("option", { value: name, selected: draft.drained.includes(name), children: name }, name)) })
              ] }),
              /* @__PURE__ */ u4("div", { class: "form", children: [
                /* @__PURE__ */ u4(Field, { label: "Added", value: draft.added, set: (added) => set({ added }) }),
                /* @__PURE__ */ u4(Select, { label: "Like", value: draft.like || (names[0] ?? ""), of: names, set: (like) => set({ like }) })
              ] })
            ] }),
            /* @__PURE__ */ u4("fieldset", { children: [
              /* @__PURE__ */ u4("legend", { children: "Reservation" }),
              /* @__PURE__ */ u4("div", { class: "form", children: [
                /* @__PURE__ */ u4(Field, { label: "GPUs", value: draft.gpus, set: (gpus) => set({ gpus }) }),
                /* @__PURE__ */ u4(Select, { label: "For tenant", value: draft.reservedFor, of: owners, set: (reservedFor) => set({ reservedFor }) }),
                /* @__PURE__ */ u4(Field, { label: "Begins in hours", value: draft.inHours, set: (inHours) => set({ inHours }) }),
                /* @__PURE__ */ u4(Field, { label: "Lasts hours", value: draft.forHours, set: (forHours) => set({ forHours }) })
              ] })
            ] }),
            /* @__PURE__ */ u4("fieldset", { children: [
              /* @__PURE__ */ u4("legend", { children: "Rules" }),
              /* @__PURE__ */ u4("div", { class: "form", children: [
                /* @__PURE__ */ u4(Select, { label: "Quota of tenant", value: draft.tenant, of: ["", ...owners], none: "none changes", set: (tenant) => set({ tenant }) }),
                /* @__PURE__ */ u4(Field, { label: "Quota in GPUs", value: draft.quota, hint: "no limit", set: (quota) => set({ quota }) }),
                /* @__PURE__ */ u4(Select, { label: "Policy", value: draft.policy, of: ["", ...POLICIES], none: "as it is", set: (policy) => set({ policy }) })
              ] })
            ] })
          ] }),
          /* @__PURE__ */ u4("div", { class: "buttons", children: [
            /* @__PURE__ */ u4("button", { type: "submit", class: "primary", disabled: !asked || state.isBusy, children: "Ask" }),
            /* @__PURE__ */ u4("button", { type: "button", onClick: () => setDraft(EMPTY), children: "Clear" }),
            /* @__PURE__ */ u4("span", { class: "muted", role: "status", children: state.isBusy ? "The engine rolls the cluster forward…" : asked || "Suppose something first." })
          ] })
        ]
      }
    ),
    /* @__PURE__ */ u4(Problem, { error: state.error }),
    state.answer ? /* @__PURE__ */ u4(Answer, { answer: state.answer, asked: state.asked }) : null
  ] });
}
function Field({ label, value, set, hint }) {
  return /* @__PURE__ */ u4("label", { children: [
    label,
    /* @__PURE__ */ u4("input", { type: "number", min: 0, step: "any", value, placeholder: hint ?? "", onInput: (event) => set(event.currentTarget.value) })
  ] });
}
function Select({ label, value, of, none, set }) {
  return /* @__PURE__ */ u4("label", { children: [
    label,
    /* @__PURE__ */ u4("select", { value, onChange: (event) => set(event.currentTarget.value), children: of.map((one) => /* @__PURE__ */ u4("option", { value: one, children: one || none }, one)) })
  ] });
}
function requestOf2(draft, firstNode) {
  const request = {};
  if (draft.drained.length) request.drain_nodes = draft.drained;
  if (Number(draft.added) > 0) request.add_nodes = { count: Number(draft.added), like: draft.like || firstNode };
  if (draft.policy) request.policy = draft.policy;
  if (draft.tenant) request.quotas = [{ tenant_id: draft.tenant, max_gpus: draft.quota === "" ? null : Number(draft.quota) }];
  if (Number(draft.gpus) > 0) {
    const start = Date.now() / 1e3 + Number(draft.inHours) * 3600;
    request.reservation = { gpus: Number(draft.gpus), tenant_id: draft.reservedFor, start, duration_minutes: Number(draft.forHours) * 60 };
  }
  return request;
}
function describe(draft, firstNode) {
  const parts = [];
  if (draft.drained.length) parts.push(`${draft.drained.join(", ")} drained`);
  if (Number(draft.added) > 0) parts.push(`${plural(Number(draft.added), "node")} like ${draft.like || firstNode} added`);
  if (draft.policy) parts.push(`policy ${draft.policy}`);
  if (draft.tenant) parts.push(`quota of ${draft.tenant}: ${draft.quota === "" ? "no limit" : plural(Number(draft.quota), "GPU")}`);
  if (Number(draft.gpus) > 0) parts.push(`${plural(Number(draft.gpus), "GPU")} reserved for ${draft.reservedFor} in ${draft.inHours} h, for ${draft.forHours} h`);
  return parts.join("; ");
}
function Answer({ answer, asked }) {
  const { effect } = answer;
  return /* @__PURE__ */ u4("section", { "aria-label": "Answer", children: [
    /* @__PURE__ */ u4("h2", { children: [
      "Supposed: ",
      asked
    ] }),
    answer.cut.map((text) => /* @__PURE__ */ u4("p", { class: "note", children: text }, text)),
    answer.reserved.length ? /* @__PURE__ */ u4("p", { class: "note", children: [
      "The reservation would get ",
      answer.reserved.map((place2) => `${place2.node}[${place2.gpu_ids.join(",")}]`).join(" "),
      "."
    ] }) : null,
    effect ? /* @__PURE__ */ u4(Effects, { effect, waiting: answer.waiting }) : null
  ] });
}
function moveText(seconds) {
  return `${duration(Math.abs(seconds))} ${seconds > 0 ? "later" : "earlier"}`;
}
function Effects({ effect, waiting }) {
  const figures = [
    [count(effect.earlier), effect.earlier ? `start earlier, ${duration(effect.gained_seconds)} in all` : "start earlier"],
    [count(effect.later), effect.later ? `start later, ${duration(effect.lost_seconds)} in all` : "start later"],
    [count(effect.compared - effect.earlier - effect.later), `of ${plural(waiting, "waiting job")} stay`]
  ];
  if (effect.started) figures.push([count(effect.started), "get an expected start"]);
  if (effect.stranded) figures.push([count(effect.stranded), "have none any more"]);
  const owners = [
    { name: "User", of: (one) => /* @__PURE__ */ u4(Who, { name: one.user }) },
    { name: "Tenant", of: (one) => one.tenant_id },
    { name: "In all", of: (one) => balance(one.lost_seconds - one.gained_seconds) },
    { name: "Earlier", of: (one) => count(one.earlier), right: true },
    { name: "Later", of: (one) => count(one.later), right: true }
  ];
  const moved = [
    { name: "Job", of: (one) => /* @__PURE__ */ u4(JobLink, { id: one.job_id }) },
    { name: "User", of: (one) => /* @__PURE__ */ u4(Who, { name: one.user }) },
    { name: "GPUs", of: (one) => trim(one.gpus), right: true },
    { name: "Before", of: (one) => one.before ? time(one.before) : "unknown" },
    { name: "After", of: (one) => one.after ? time(one.after) : "unknown" },
    { name: "Moves", of: (one) => one.seconds === null ? one.after ? "gets a start" : /* @__PURE__ */ u4("span", { class: "bad", children: "no start any more" }) : balance(one.seconds) },
    { name: "Sure", of: (one) => one.is_guess ? "depends on an unknown run time" : "", grow: true }
  ];
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("ul", { class: "figures", children: figures.map(([figure, label]) => /* @__PURE__ */ u4("li", { children: [
      /* @__PURE__ */ u4("strong", { children: figure }),
      /* @__PURE__ */ u4("span", { children: label })
    ] }, label)) }),
    effect.moved.length ? /* @__PURE__ */ u4(S, { children: [
      effect.owners.length ? /* @__PURE__ */ u4(S, { children: [
        /* @__PURE__ */ u4("h2", { children: "Who loses and who gains" }),
        /* @__PURE__ */ u4(Table, { label: "Users", columns: owners, rows: effect.owners, id: (one) => `${one.tenant_id} ${one.user}` })
      ] }) : null,
      /* @__PURE__ */ u4("h2", { children: "Starts that move most" }),
      /* @__PURE__ */ u4(Table, { label: "Moved starts", columns: moved, rows: effect.moved, id: (one) => one.job_id })
    ] }) : /* @__PURE__ */ u4(Empty, { title: "No expected start moves" })
  ] });
}
function balance(seconds) {
  return /* @__PURE__ */ u4("span", { class: seconds > 0 ? "bad" : "good", children: moveText(seconds) });
}

// src/app.tsx
var PAGES = [
  { path: "cluster", name: "Cluster", key: "c", show: () => /* @__PURE__ */ u4(Cluster, {}) },
  { path: "jobs", name: "Queue", key: "q", show: (rest) => rest[0] ? /* @__PURE__ */ u4(JobPage, { id: rest[0] }, rest[0]) : /* @__PURE__ */ u4(Queue, {}) },
  { path: "plan", name: "Plan", key: "p", show: (rest) => /* @__PURE__ */ u4(Plan, { job: rest[0] ?? "" }, rest[0] ?? "") },
  { path: "submit", name: "Submit", key: "s", show: (rest) => /* @__PURE__ */ u4(Submit, { from: rest[0] ?? "" }, rest[0] ?? "") },
  { path: "what-if", name: "What if", key: "w", show: () => /* @__PURE__ */ u4(WhatIf, {}), adminOnly: true }
];
var KEYS = [
  ["/", "search"],
  ["j or ↓", "next row"],
  ["k or ↑", "previous row"],
  ["Enter", "open the row"],
  ["Space", "select the row"],
  ["x", "cancel the row or the selection"],
  ["h", "hold or release it"],
  ["?", "this list"],
  ["Esc", "close, or leave the search"]
];
var route = y3(readRoute());
function readRoute() {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  return (parts.length ? parts : ["cluster"]).map(decodeURIComponent);
}
addEventListener("hashchange", () => {
  route.value = readRoute();
  scrollTo(0, 0);
});
function App() {
  const [showsKeys, setShowsKeys] = d2(false);
  h2(() => {
    void call("GET /me").then((found) => {
      me.value = found;
    }).catch(() => void 0);
  }, [needsLogin.value]);
  h2(() => {
    const press = (event) => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") {
        setShowsKeys(true);
        return;
      }
      const page2 = PAGES.find((one) => one.key.toUpperCase() === event.key);
      if (page2 && mayOpen(page2)) location.hash = `#/${page2.path}`;
      if (event.key === "/") {
        const search = document.querySelector("input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
  const [path, ...rest] = route.value;
  const page = PAGES.find((one) => one.path === path);
  h2(() => {
    document.title = `${rest[0] ?? page?.name ?? "not found"} · gpu-scheduler`;
  }, [route.value]);
  return /* @__PURE__ */ u4(S, { children: [
    /* @__PURE__ */ u4("a", { class: "skip", href: "#main", onClick: focusMain, children: "Skip to the content" }),
    /* @__PURE__ */ u4("header", { children: [
      /* @__PURE__ */ u4("a", { class: "brand", href: "#/cluster", children: [
        /* @__PURE__ */ u4("img", { src: "/dashboard/icon.svg", alt: "", width: "22", height: "22" }),
        "gpu-scheduler"
      ] }),
      /* @__PURE__ */ u4("nav", { "aria-label": "Pages", children: PAGES.filter(mayOpen).map((one) => /* @__PURE__ */ u4("a", { href: `#/${one.path}`, "aria-current": one.path === path ? "page" : void 0, children: one.name }, one.path)) }),
      /* @__PURE__ */ u4("div", { class: "self", children: [
        me.value ? /* @__PURE__ */ u4("span", { title: me.value.via, children: [
          me.value.user,
          /* @__PURE__ */ u4("span", { class: "muted", children: [
            " ",
            me.value.role
          ] })
        ] }) : null,
        /* @__PURE__ */ u4("button", { type: "button", class: "small plain", "aria-label": "Keys", onClick: () => setShowsKeys(true), children: "?" })
      ] })
    ] }),
    online.value ? null : /* @__PURE__ */ u4("p", { class: "banner", role: "alert", children: "The server does not answer. The page shows what it last knew, and tries again." }),
    /* @__PURE__ */ u4("main", { id: "main", tabIndex: -1, children: needsLogin.value ? /* @__PURE__ */ u4(Login, {}) : page ? page.show(rest) : /* @__PURE__ */ u4(Empty, { title: "There is no such page" }) }),
    showsKeys ? /* @__PURE__ */ u4(KeyList, { close: () => setShowsKeys(false) }) : null,
    /* @__PURE__ */ u4(QuestionDialog, {}),
    /* @__PURE__ */ u4(Toasts, {})
  ] });
}
function mayOpen(page) {
  return !page.adminOnly || me.value?.role === "admin";
}
function focusMain(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
function KeyList({ close }) {
  const dialog = A2(null);
  h2(() => dialog.current?.showModal(), []);
  return /* @__PURE__ */ u4("dialog", { ref: dialog, onClose: close, "aria-labelledby": "keys-title", children: [
    /* @__PURE__ */ u4("h2", { id: "keys-title", children: "Keys" }),
    /* @__PURE__ */ u4("dl", { class: "keys", children: [...KEYS, ...PAGES.filter(mayOpen).map((page) => [page.key.toUpperCase(), page.name])].map(([key, does]) => /* @__PURE__ */ u4("div", { children: [
      /* @__PURE__ */ u4("dt", { children: /* @__PURE__ */ u4("kbd", { children: key }) }),
      /* @__PURE__ */ u4("dd", { children: does })
    ] }, key)) }),
    /* @__PURE__ */ u4("div", { class: "buttons", children: /* @__PURE__ */ u4("button", { type: "button", class: "primary", onClick: () => dialog.current?.close(), children: "Close" }) })
  ] });
}
var place = document.getElementById("app");
if (place) R(/* @__PURE__ */ u4(App, {}), place);
